/* Metrics: values that survive, ranges, and a downsampling that keeps the extremes. */
#include <math.h>

#include "store/jobs.h"
#include "store/metrics.h"
#include "store_fixture.h"

static int64_t insert_job(struct store_tx *tx)
{
    struct store_job job = {
        .name = "j", .spec_json = "{}", .device = "cpu", .world = 1, .steps = 10};
    int64_t id = 0;
    OK(store_job_insert(tx, &job, 1, &id));
    return id;
}

static void put(struct store_tx *tx, int64_t job, int64_t step, const char *key, double value)
{
    struct store_metric metric = {key, value};
    OK(store_metrics_put(tx, job, step, 1000 + (double)step, &metric, 1));
}

static void test_values_survive(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t job = insert_job(tx);
    static const double values[] = {0.1,  -0.0,      NAN,    INFINITY, -INFINITY, 5e-324,
                                    3e38, 1.0 / 3.0, 8192.0, 1e300,    -7.0};
    size_t n = sizeof values / sizeof *values;
    for (size_t i = 0; i < n; i++)
        put(tx, job, (int64_t)i, "loss", values[i]);
    struct store_series s;
    OK(store_metrics_series(tx, job, "loss", 0, INT64_MAX, 0, &s));
    assert_int_equal(s.count, n);
    assert_int_equal(s.total, n);
    assert_false(s.sampled);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(s.steps[i], i);
        assert_true(isnan(values[i]) ? isnan(s.values[i]) : s.values[i] == values[i]);
    }
    OK(store_metrics_series(tx, job, "loss", 3, 5, 0, &s));
    assert_int_equal(s.count, 3);
    assert_int_equal(s.steps[0], 3);
    assert_int_equal(s.steps[2], 5);
    OK(store_metrics_series(tx, job, "nothing", 0, 10, 0, &s));
    assert_int_equal(s.count, 0);
    OK(store_metrics_series(tx, job + 1, "loss", 0, 10, 0, &s));
    assert_int_equal(s.count, 0);
}

static void test_put_again_and_latest(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t job = insert_job(tx), other = insert_job(tx);
    put(tx, job, 1, "loss", 3);
    put(tx, job, 2, "loss", 2);
    put(tx, job, 1, "bound", 4);
    struct store_metric again[] = {{"loss", NAN}, {"lr", 0.5}};
    OK(store_metrics_put(tx, job, 2, 5000, again, 2));
    put(tx, other, 9, "elsewhere", 1);

    const char *const *keys;
    size_t count;
    OK(store_metrics_keys(tx, job, &keys, &count));
    assert_int_equal(count, 4);
    assert_string_equal(keys[0], "bound");
    assert_string_equal(keys[1], "loss");
    assert_string_equal(keys[2], "lr");
    assert_string_equal(keys[3], "time");

    struct store_latest *latest;
    OK(store_metrics_latest(tx, job, &latest, &count));
    assert_int_equal(count, 4);
    assert_int_equal(latest[0].step, 1);
    assert_true(latest[0].value == 4);
    assert_int_equal(latest[1].step, 2);
    assert_true(isnan(latest[1].value));
    assert_true(latest[3].value == 1002); /* the first record's */
}

static void test_bad_keys(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t job = insert_job(tx);
    char longest[STORE_METRIC_KEY_BYTES + 2];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    const char *const bad[] = {"", "two words", "l\xc3\xb6ss", "a\"b", longest};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct store_metric metric = {bad[i], 1};
        FAILS(store_metrics_put(tx, job, 1, 1, &metric, 1), ERR_INVALID, bad[i]);
    }
    put(tx, job, 1, longest + 1, 1);
    struct store_metric metric = {"loss", 1};
    FAILS(store_metrics_put(tx, job, -1, 1, &metric, 1), ERR_INTERNAL, "step >= 0");
    FAILS(store_metrics_put(tx, 99, 1, 1, &metric, 1), ERR_INTERNAL, "FOREIGN KEY");
}

/* A noisy descent with one spike, one dip, and NaNs if asked. */
static double curve(int64_t step, bool nans)
{
    if (nans && step % 4000 == 1234)
        return NAN;
    if (step == 7777)
        return 1e6;
    if (step == 15001)
        return -3;
    return 5 * exp(-(double)step / 8000) + 0.1 * sin((double)step * 12.9898);
}

static void check_sampling(struct store_tx *tx, bool nans, size_t points)
{
    int64_t job = insert_job(tx), steps = 20000;
    OK(store_script(tx, "begin", "BEGIN"));
    for (int64_t step = 1; step <= steps; step++)
        put(tx, job, step, "loss", curve(step, nans));
    OK(store_script(tx, "commit", "COMMIT"));
    struct store_series s;
    OK(store_metrics_series(tx, job, "loss", 0, INT64_MAX, points, &s));
    assert_true(s.sampled);
    assert_int_equal(s.total, steps);
    assert_in_range(s.count, points / 3, points);
    bool spike = false, dip = false, some_nan = false;
    for (size_t i = 0; i < s.count; i++) {
        if (i)
            assert_true(s.steps[i] > s.steps[i - 1]);
        double v = curve(s.steps[i], nans);
        assert_true(isnan(v) ? isnan(s.values[i]) : s.values[i] == v);
        spike |= s.steps[i] == 7777;
        dip |= s.steps[i] == 15001;
        some_nan |= isnan(v);
    }
    assert_true(spike && dip);
    assert_true(some_nan == nans);
    assert_int_equal(s.steps[0], 1);
    assert_int_equal(s.steps[s.count - 1], steps);

    /* Each bucket's own extremes are there too: no window of the curve exceeds the kept points. */
    size_t buckets = (points - 2) / (nans ? 3 : 2);
    for (size_t b = 0; b < buckets; b++) {
        double width = (double)steps / (double)buckets, least = INFINITY, most = -INFINITY;
        double kept_least = INFINITY, kept_most = -INFINITY;
        for (int64_t step = 2; step < steps; step++)
            if ((size_t)((double)(step - 1) / width) == b) {
                least = fmin(least, curve(step, nans));
                most = fmax(most, curve(step, nans));
            }
        for (size_t i = 1; i + 1 < s.count; i++)
            if ((size_t)((double)(s.steps[i] - 1) / width) == b) {
                kept_least = fmin(kept_least, s.values[i]);
                kept_most = fmax(kept_most, s.values[i]);
            }
        assert_true(kept_least == least && kept_most == most);
    }
}

static void test_sampling_keeps_extremes(void **state)
{
    check_sampling(&((struct fixture *)*state)->tx, false, 100);
}

static void test_sampling_keeps_nans(void **state)
{
    check_sampling(&((struct fixture *)*state)->tx, true, 100);
}

static void test_sampling_of_few_and_of_sparse(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t job = insert_job(tx);
    for (int64_t i = 0; i < 12; i++)
        put(tx, job, i < 6 ? i : INT64_MAX - 12 + i, "loss", (double)i);
    struct store_series s;
    for (size_t points = 1; points <= 12; points++) {
        OK(store_metrics_series(tx, job, "loss", 0, INT64_MAX, points, &s));
        assert_true(s.count <= (points < 8 ? 8 : points));
        assert_int_equal(s.steps[0], 0);
        assert_int_equal(s.steps[s.count - 1], INT64_MAX - 1);
    }
    assert_int_equal(s.count, 12);
    for (int64_t i = 0; i < 20; i++)
        put(tx, job, 100 + i, "all_nan", NAN);
    OK(store_metrics_series(tx, job, "all_nan", 0, INT64_MAX, 8, &s));
    assert_int_equal(s.count, 4); /* both ends and the first of each of two buckets */
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_connection, fixture_remove)
    const struct CMUnitTest tests[] = {
        TEST(test_values_survive),
        TEST(test_put_again_and_latest),
        TEST(test_bad_keys),
        TEST(test_sampling_keeps_extremes),
        TEST(test_sampling_keeps_nans),
        TEST(test_sampling_of_few_and_of_sparse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
