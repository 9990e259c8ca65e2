/* The plan when memory is short: every allocation fails once, and each failure must come back as
 * an out-of-memory error that leaks nothing (the sanitizer build looks). The plan's own files are
 * compiled in with allocators that count. */
#include "plan_cases.h"

static long allowed; /* allocations before the one that fails; negative: none fails */
static long made;

static bool refused(void)
{
    return made++ == allowed;
}

static void *counted_calloc(size_t n, size_t size)
{
    return refused() ? NULL : calloc(n, size);
}

static void *counted_reallocarray(void *p, size_t n, size_t size)
{
    return refused() ? NULL : reallocarray(p, n, size);
}

#define calloc counted_calloc
#define reallocarray counted_reallocarray
#include "daemon/plan/exchange.c"
#include "daemon/plan/layout.c"
#include "daemon/plan/visibility.c"
#undef calloc
#undef reallocarray

static struct err *attempt(const struct plan_case *c)
{
    struct plan_layout *l = NULL;
    struct plan_capacity capacity;
    struct err *e =
        plan_layout_create(&c->shape, 0, c->documents, c->n_documents, c->windows, c->n_kinds, &l);
    if (e)
        assert_null(l);
    plan_layout_free(l);
    if (!e)
        e = plan_capacity(&c->shape, 0, c->windows, c->n_kinds, &capacity);
    return e;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < 12; n++)
        for (int mode = MODE_NONE; mode <= MODE_CSBP; mode++) {
            struct plan_case c = random_case(n, mode);
            made = 0;
            allowed = -1;
            must(attempt(&c));
            long total = made;
            assert_true(total > 10);
            for (allowed = 0; allowed < total; allowed++) {
                made = 0;
                struct err *e = attempt(&c);
                assert_non_null(e);
                assert_int_equal(err_kind(e), ERR_NO_MEMORY);
                err_free(e);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_allocation_may_fail)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
