/* What the end of processes means for their job or task. */
#include "daemon/control/outcome.h"
#include "store/jobs.h"
#include "store/nodes.h"
#include "store/tasks.h"
#include "store_fixture.h"

#define BACKOFF_S 2.0

/* How a rank ends, in the order of their ends. */
struct end {
    int rank;
    const char *status, *kind, *reason;
    bool began; /* it said `started` */
};

static int64_t make_job(struct store_tx *tx, int world, int restart_max)
{
    char spec[64];
    int64_t id;
    snprintf(spec, sizeof spec, "{\"restart\":{\"max\":%d}}", restart_max);
    struct store_job job = {
        .name = "j", .spec_json = spec, .device = "cpu", .world = world, .steps = 10};
    OK(store_job_insert(tx, &job, 1, &id));
    return id;
}

/* Begins an attempt and ends its ranks. */
static void run_attempt(struct store_tx *tx, int64_t job, const struct end *ends, int world)
{
    struct store_attempt attempt;
    struct store_node node = {.name = "n", .version = "1", .cpu_slots = 4, .resources_json = "{}"};
    int64_t node_id;
    OK(store_node_register(tx, &node, 1, &node_id));
    OK(store_attempt_begin(tx, job, 0, 2, &attempt));
    OK(store_job_transition(tx, job, 0, STORE_JOB_STARTING, NULL, 2));
    for (int rank = 0; rank < world; rank++) {
        struct store_worker w = {
            .job_id = job, .attempt = attempt.number, .rank = rank, .node_id = node_id, .gpu = -1};
        OK(store_worker_insert(tx, &w, 2));
    }
    bool all = true;
    for (int i = 0; i < world; i++) {
        if (ends[i].began)
            OK(store_worker_started(tx, job, attempt.number, ends[i].rank, "cpu", 1, 1, 3));
        all = all && ends[i].began;
    }
    if (all)
        OK(store_job_transition(tx, job, 0, STORE_JOB_RUNNING, NULL, 3));
    for (int i = 0; i < world; i++)
        OK(store_worker_end(tx, job, attempt.number, ends[i].rank, ends[i].status, ends[i].kind,
                            ends[i].reason, 10 + i));
    OK(outcome_of_attempt(tx, job, attempt.number, BACKOFF_S));
}

static void expect(struct store_tx *tx, int64_t id, enum store_job_state state, int64_t restarts,
                   const char *reason)
{
    struct store_job job;
    OK(store_job_get(tx, id, &job));
    assert_int_equal(job.state, state);
    assert_int_equal(job.restarts, restarts);
    if (reason)
        assert_string_equal(job.reason, reason);
    else
        assert_null(job.reason);
}

static void test_all_done(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    const struct end ends[] = {{1, "done", NULL, NULL, true}, {0, "done", NULL, NULL, true}};
    int64_t id = make_job(tx, 2, 3);
    run_attempt(tx, id, ends, 2);
    expect(tx, id, STORE_JOB_SUCCEEDED, 0, NULL);
}

/* The cause is who failed for a reason of its own, in whatever order they ended. */
static void test_cause(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    const struct end killed = {2, "killed", NULL, "was killed by signal 9 (Killed)", true};
    const struct end aborted = {0, "error", "aborted", "rank 2 hung up", true};
    const struct end stopped = {1, "stopped", NULL, "stopped as it was told to", true};
    const struct end orders[][3] = {
        {killed, aborted, stopped}, {aborted, stopped, killed}, {stopped, killed, aborted}};
    for (int i = 0; i < 3; i++) {
        int64_t id = make_job(tx, 3, 0);
        run_attempt(tx, id, orders[i], 3);
        expect(tx, id, STORE_JOB_FAILED, 0, "rank 2 was killed by signal 9 (Killed)");
        struct store_attempt attempt;
        OK(store_attempt_get(tx, id, 1, &attempt));
        assert_int_equal(attempt.outcome, STORE_OUTCOME_FAILED);
        assert_string_equal(attempt.reason, "rank 2 was killed by signal 9 (Killed)");
    }
    /* Of two with a reason of their own, the first. */
    const struct end two[] = {{1, "error", "io", "the disk is full", true},
                              {0, "killed", NULL, "was killed by signal 9 (Killed)", true}};
    int64_t id = make_job(tx, 2, 0);
    run_attempt(tx, id, two, 2);
    expect(tx, id, STORE_JOB_FAILED, 0, "rank 1 failed: the disk is full");
}

static void test_restarts(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    const struct end ends[] = {{0, "error", "io", "no space", true}};
    int64_t id = make_job(tx, 1, 2);
    struct store_job job;
    for (int i = 1; i <= 2; i++) {
        double before_s = store_now(), wait_s = i == 1 ? BACKOFF_S : 2 * BACKOFF_S;
        run_attempt(tx, id, ends, 1);
        OK(store_job_get(tx, id, &job));
        assert_int_equal(job.state, STORE_JOB_RESTARTING);
        assert_int_equal(job.restarts, i);
        assert_true(job.not_before_s >= before_s + wait_s);
        assert_true(job.not_before_s <= store_now() + wait_s);
    }
    run_attempt(tx, id, ends, 1);
    expect(tx, id, STORE_JOB_FAILED, 2,
           "rank 0 failed: no space (restarted 2 times, restart.max is 2)");
}

static void test_what_no_restart_mends(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    const struct end ends[] = {{0, "error", "invalid", "the weights are of another model", true}};
    int64_t id = make_job(tx, 1, 5);
    run_attempt(tx, id, ends, 1);
    expect(tx, id, STORE_JOB_FAILED, 0, "rank 0 failed: the weights are of another model");
}

static void test_cancelled(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    const struct end ends[] = {{0, "stopped", NULL, NULL, true}};
    int64_t id = make_job(tx, 1, 5);
    OK(store_job_set_intent(tx, id, STORE_INTENT_CANCEL, 1));
    run_attempt(tx, id, ends, 1);
    expect(tx, id, STORE_JOB_CANCELLED, 0, "cancelled on request");
    /* But one that was done before it heard of that has succeeded. */
    const struct end done[] = {{0, "done", NULL, NULL, true}};
    id = make_job(tx, 1, 5);
    OK(store_job_set_intent(tx, id, STORE_INTENT_CANCEL, 1));
    run_attempt(tx, id, done, 1);
    expect(tx, id, STORE_JOB_SUCCEEDED, 0, NULL);
}

/* Ranks that ended since nobody renewed their lease: whichever ended first, that is the reason, and
 * no restart is counted. */
static void test_lease_over(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    const struct end over = {1, "stopped", "timeout", "its lease was over", true};
    const struct end unaware = {0, "stopped", NULL, "was stopped from outside", true};
    const struct end orders[][2] = {{over, unaware}, {unaware, over}};
    for (int i = 0; i < 2; i++) {
        int64_t id = make_job(tx, 2, 0);
        run_attempt(tx, id, orders[i], 2);
        expect(tx, id, STORE_JOB_RESTARTING, 0, "its lease was over");
    }
    const struct end outside[] = {{0, "stopped", NULL, "was stopped from outside", true}};
    int64_t id = make_job(tx, 1, 0);
    run_attempt(tx, id, outside, 1);
    expect(tx, id, STORE_JOB_FAILED, 0, "rank 0 was stopped from outside");
}

/* The daemon died between a worker's launch and its bootstrap: not the job's fault. */
static void test_never_began(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    struct end ends[] = {{0, "killed", OUTCOME_UNSEEN, "was gone", false}};
    int64_t id = make_job(tx, 1, 0);
    run_attempt(tx, id, ends, 1);
    expect(tx, id, STORE_JOB_RESTARTING, 0,
           "the daemon was restarted before the workers had begun");
    ends[0].began = true;
    run_attempt(tx, id, ends, 1);
    expect(tx, id, STORE_JOB_FAILED, 0, "rank 0 was gone");
}

static void test_tasks(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    const struct {
        struct outcome outcome;
        bool cancel;
        enum store_task_state state;
        const char *reason;
    } rows[] = {
        {{"error", "invalid", "line 7 is no JSON", 9},
         false,
         STORE_TASK_FAILED,
         "line 7 is no JSON"},
        {{"killed", NULL, "was killed by signal 9 (Killed)", 9},
         false,
         STORE_TASK_FAILED,
         "was killed by signal 9 (Killed)"},
        {{"killed", OUTCOME_UNSEEN, "was gone", 9},
         false,
         STORE_TASK_QUEUED,
         "its process was gone when the daemon came back"},
        {{"done", NULL, NULL, 9}, false, STORE_TASK_FAILED, "it ended, but reported no result"},
        {{"stopped", NULL, NULL, 9}, true, STORE_TASK_CANCELLED, "not wanted"},
        {{"killed", OUTCOME_UNSEEN, NULL, 9}, true, STORE_TASK_CANCELLED, "not wanted"},
    };
    uint8_t hash[STORE_SECRET_HASH_BYTES] = {0};
    struct store_node node = {.name = "n", .version = "1", .cpu_slots = 4, .resources_json = "{}"};
    int64_t node_id;
    OK(store_node_register(tx, &node, 1, &node_id));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct store_task task = {.type = STORE_TASK_PREPARE, .parameters_json = "{}"};
        int64_t id;
        OK(store_task_insert(tx, &task, 1, &id));
        OK(store_task_start(tx, id, node_id, -1, hash, "/d", 2));
        if (rows[i].cancel)
            OK(store_task_cancel(tx, id, "not wanted", 3));
        OK(outcome_of_task(tx, id, &rows[i].outcome, BACKOFF_S));
        OK(store_task_get(tx, id, &task));
        assert_int_equal(task.state, rows[i].state);
        assert_string_equal(task.reason, rows[i].reason);
    }
}

/* A preparation that was killed is tried again as often as its job may be restarted. */
static void test_preparation_killed(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    const struct outcome killed = {"killed", NULL, "was killed by signal 9 (Killed)", 9};
    const struct outcome invalid = {"error", "invalid", "line 7 is no JSON", 9};
    uint8_t hash[STORE_SECRET_HASH_BYTES] = {0};
    struct store_node node = {.name = "n", .version = "1", .cpu_slots = 4, .resources_json = "{}"};
    int64_t node_id, id, job_id = make_job(tx, 1, 1);
    struct store_job job;
    OK(store_node_register(tx, &node, 1, &node_id));
    struct store_task task = {
        .type = STORE_TASK_PREPARE, .parameters_json = "{}", .job_id = job_id};
    OK(store_task_insert(tx, &task, 1, &id));
    OK(store_task_start(tx, id, node_id, -1, hash, "/d", 2));
    double before_s = store_now();
    OK(outcome_of_task(tx, id, &killed, BACKOFF_S));
    OK(store_task_get(tx, id, &task));
    assert_int_equal(task.state, STORE_TASK_QUEUED);
    assert_string_equal(task.reason, "it was killed by signal 9 (Killed); restart 1 of 1 follows");
    OK(store_job_get(tx, job_id, &job));
    assert_int_equal(job.restarts, 1);
    assert_true(job.not_before_s >= before_s + BACKOFF_S);
    OK(store_task_start(tx, id, node_id, -1, hash, "/d", 2));
    OK(outcome_of_task(tx, id, &killed, BACKOFF_S));
    OK(store_task_get(tx, id, &task));
    assert_int_equal(task.state, STORE_TASK_FAILED);
    /* What would come again is not tried again. */
    struct store_task other = {
        .type = STORE_TASK_PREPARE, .parameters_json = "{}", .job_id = make_job(tx, 1, 1)};
    OK(store_task_insert(tx, &other, 1, &id));
    OK(store_task_start(tx, id, node_id, -1, hash, "/d", 2));
    OK(outcome_of_task(tx, id, &invalid, BACKOFF_S));
    OK(store_task_get(tx, id, &other));
    assert_int_equal(other.state, STORE_TASK_FAILED);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_connection, fixture_remove)
    const struct CMUnitTest tests[] = {
        TEST(test_all_done),
        TEST(test_cause),
        TEST(test_restarts),
        TEST(test_what_no_restart_mends),
        TEST(test_cancelled),
        TEST(test_never_began),
        TEST(test_tasks),
        TEST(test_lease_over),
        TEST(test_preparation_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
