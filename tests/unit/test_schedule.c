#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/worker/optim/schedule.h"

static struct job_spec spec(enum schedule_type type)
{
    struct job_spec s = {.steps = 110};
    s.optimizer.lr = 2e-3f;
    s.schedule.type = type;
    s.schedule.warmup_steps = 10;
    s.schedule.min_lr = 1e-3f;
    return s;
}

static void expect(const struct job_spec *s, int64_t step, double lr)
{
    assert_true(fabs(schedule_lr(s, step) - lr) < 1e-9);
}

static void test_warmup_and_decay(void **state)
{
    (void)state;
    struct job_spec s = spec(SCHEDULE_CONSTANT);
    expect(&s, 1, 2e-4);
    expect(&s, 10, 2e-3);
    expect(&s, 110, 2e-3);
    s = spec(SCHEDULE_LINEAR);
    expect(&s, 5, 1e-3);
    expect(&s, 60, 1.5e-3);
    expect(&s, 110, 1e-3);
    s = spec(SCHEDULE_COSINE);
    expect(&s, 35, 1e-3 + 1e-3 * 0.5 * (1 + sqrt(0.5)));
    expect(&s, 60, 1.5e-3);
    expect(&s, 110, 1e-3);
}

static void test_no_warmup_and_warmup_alone(void **state)
{
    (void)state;
    struct job_spec s = spec(SCHEDULE_COSINE);
    s.schedule.warmup_steps = 0;
    s.steps = 1;
    expect(&s, 1, 1e-3);
    s.schedule.warmup_steps = s.steps = 4;
    expect(&s, 4, 2e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warmup_and_decay),
        cmocka_unit_test(test_no_warmup_and_warmup_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
