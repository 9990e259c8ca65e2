/* Jobs, events, attempts, workers and their records. */
#include "store/attempts.h"
#include "store/checkpoints.h"
#include "store/datasets.h"
#include "store/events.h"
#include "store/jobs.h"
#include "store/metrics.h"
#include "store/nodes.h"
#include "store_fixture.h"

static int64_t insert_job(struct store_tx *tx, const char *name, double now_s)
{
    struct store_job job = {
        .name = name,
        .spec_json = "{\"steps\":100}",
        .device = "cpu",
        .world = 2,
        .steps = 100,
        .created_by = "someone",
    };
    int64_t id = 0;
    OK(store_job_insert(tx, &job, now_s, &id));
    return id;
}

static int64_t insert_node(struct store_tx *tx)
{
    struct store_node node = {
        .name = "here", .version = "0.1.0", .cpu_slots = 4, .resources_json = "{}"};
    int64_t id = 0;
    OK(store_node_register(tx, &node, 1.0, &id));
    return id;
}

static int64_t insert_checkpoint(struct store_tx *tx, int64_t job, int64_t attempt, int64_t step)
{
    struct store_checkpoint c = {
        .job_id = job,
        .attempt = attempt,
        .step = step,
        .directory = "/c",
        .run_state_json = "{}",
        .spec_json = "{}",
        .manifest_json = "{}",
        .created_s = 50,
    };
    int64_t id = 0;
    OK(store_checkpoint_insert(tx, &c, NULL, 0, &id));
    return id;
}

static void test_job_round_trip(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t id = insert_job(tx, "größer", 1000.25);
    struct store_job job;
    OK(store_job_get(tx, id, &job));
    assert_string_equal(job.name, "größer");
    assert_int_equal(job.state, STORE_JOB_QUEUED);
    assert_int_equal(job.intent, STORE_INTENT_RUN);
    assert_null(job.reason);
    assert_string_equal(job.spec_json, "{\"steps\":100}");
    assert_string_equal(job.device, "cpu");
    assert_int_equal(job.world, 2);
    assert_int_equal(job.steps, 100);
    assert_int_equal(job.step, 0);
    assert_int_equal(job.dataset_id, 0);
    assert_string_equal(job.created_by, "someone");
    assert_true(job.created_s == 1000.25 && job.updated_s == 1000.25);
    assert_true(job.started_s == 0 && job.finished_s == 0 && job.progress_s == 0);
    assert_int_equal(job.version, 1);

    OK(store_job_progress(tx, id, 7, 1001));
    OK(store_job_progress(tx, id, 5, 1002));
    OK(store_job_set_restarts(tx, id, 2, 1010, 1003));
    OK(store_job_get(tx, id, &job));
    assert_int_equal(job.step, 7);
    assert_true(job.progress_s == 1002 && job.not_before_s == 1010 && job.updated_s == 1003);
    assert_int_equal(job.restarts, 2);
    assert_int_equal(job.version, 4);

    FAILS(store_job_get(tx, id + 1, &job), ERR_NOT_FOUND, "there is no job 2");
    FAILS(store_job_progress(tx, 77, 1, 1), ERR_NOT_FOUND, "there is no job 77");
    FAILS(store_job_set_dataset(tx, id, 5, 1), ERR_INTERNAL, "FOREIGN KEY");
}

static void test_bad_rows_are_refused(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    struct store_job job = {
        .name = "j", .spec_json = "{not json", .device = "cpu", .world = 1, .steps = 1};
    int64_t id;
    FAILS(store_job_insert(tx, &job, 1, &id), ERR_INTERNAL, "json_valid(spec_json)");
    job.spec_json = "{}";
    job.device = "tpu";
    FAILS(store_job_insert(tx, &job, 1, &id), ERR_INTERNAL, "device");
    job.device = "cpu";
    job.world = 0;
    FAILS(store_job_insert(tx, &job, 1, &id), ERR_INTERNAL, "world");
}

static void test_transitions_write_events(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t id = insert_job(tx, "j", 1);
    OK(store_job_transition(tx, id, 0, STORE_JOB_PREPARING, NULL, 2));
    OK(store_job_transition(tx, id, STORE_JOB_MASK(STORE_JOB_PREPARING), STORE_JOB_STARTING, NULL,
                            3));
    OK(store_job_transition(tx, id, 0, STORE_JOB_RUNNING, NULL, 4));
    OK(store_job_transition(tx, id, 0, STORE_JOB_RESTARTING, "rank 1 was killed by SIGKILL", 5));
    OK(store_job_set_restarts(tx, id, 1, 9, 5));
    OK(store_job_transition(tx, id, 0, STORE_JOB_STARTING, NULL, 6));
    OK(store_job_transition(tx, id, 0, STORE_JOB_RUNNING, NULL, 7));
    struct store_job job;
    OK(store_job_get(tx, id, &job));
    assert_true(job.started_s == 4 && job.finished_s == 0 && job.not_before_s == 0);
    assert_null(job.reason);
    OK(store_job_transition(tx, id, 0, STORE_JOB_SUCCEEDED, "100 steps are done", 8));
    OK(store_job_get(tx, id, &job));
    assert_int_equal(job.state, STORE_JOB_SUCCEEDED);
    assert_true(job.finished_s == 8);
    assert_string_equal(job.reason, "100 steps are done");

    struct store_events events;
    OK(store_events_list(tx, id, 0, 100, &events));
    assert_int_equal(events.count, 8);
    assert_false(events.more);
    assert_null(events.items[0].from);
    assert_string_equal(events.items[0].to, "queued");
    assert_string_equal(events.items[4].type, "state");
    assert_string_equal(events.items[4].from, "running");
    assert_string_equal(events.items[4].to, "restarting");
    assert_string_equal(events.items[4].message, "rank 1 was killed by SIGKILL");
    for (size_t i = 1; i < events.count; i++)
        assert_true(events.items[i].id > events.items[i - 1].id);
}

/* DESIGN's picture, said once more and independently of the table in jobs.c. */
static bool should_be_legal(enum store_job_state from, enum store_job_state to)
{
    static const char *const arrows =
        " queued>preparing queued>starting queued>paused queued>failed queued>cancelled"
        " preparing>queued preparing>starting preparing>paused preparing>failed"
        " preparing>cancelled starting>running starting>restarting starting>paused"
        " starting>failed starting>cancelled running>succeeded running>restarting running>paused"
        " running>failed running>cancelled restarting>starting restarting>paused"
        " restarting>failed restarting>cancelled paused>queued paused>failed paused>cancelled ";
    char arrow[64];
    snprintf(arrow, sizeof arrow, " %s>%s ", store_job_state_name(from), store_job_state_name(to));
    return strstr(arrows, arrow);
}

static void test_every_illegal_transition_is_refused(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    for (int from = 0; from < STORE_JOB_STATES; from++)
        for (int to = 0; to < STORE_JOB_STATES; to++) {
            int64_t id = insert_job(tx, "j", 1);
            OK(store_exec(tx, "force a state",
                          "UPDATE jobs SET state = ?2, finished_s ="
                          " iif(?2 IN ('succeeded', 'failed', 'cancelled'), 5, NULL) WHERE id = ?1",
                          V_INT(id), V_TEXT(store_job_state_name(from))));
            struct store_job before, after;
            struct store_events events;
            OK(store_job_get(tx, id, &before));
            struct err *e = store_job_transition(tx, id, 0, to, "why", 9);
            OK(store_job_get(tx, id, &after));
            OK(store_events_list(tx, id, 0, 10, &events));
            if (should_be_legal(from, to)) {
                OK(e);
                assert_int_equal(after.state, to);
                assert_int_equal(events.count, 2);
            } else {
                FAILS(e, ERR_CONFLICT, store_job_state_name(from));
                assert_int_equal(after.state, from);
                assert_int_equal(after.version, before.version);
                assert_int_equal(events.count, 1);
            }
            store_forget(tx);
        }
    int64_t id = insert_job(tx, "j", 1);
    FAILS(
        store_job_transition(tx, id, STORE_JOB_MASK(STORE_JOB_RUNNING), STORE_JOB_FAILED, NULL, 2),
        ERR_CONFLICT, "is queued and cannot become failed");
}

static void test_state_names(void **state)
{
    (void)state;
    for (int i = 0; i < STORE_JOB_STATES; i++) {
        enum store_job_state parsed;
        assert_true(store_job_state_parse(store_job_state_name(i), &parsed));
        assert_int_equal(parsed, i);
    }
    enum store_job_state parsed;
    assert_false(store_job_state_parse("Running", &parsed));
    assert_false(store_job_state_parse("", &parsed));
}

static void test_intent(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t id = insert_job(tx, "j", 1);
    OK(store_job_set_intent(tx, id, STORE_INTENT_PAUSE, 2));
    OK(store_job_set_intent(tx, id, STORE_INTENT_PAUSE, 3));
    OK(store_job_set_intent(tx, id, STORE_INTENT_RUN, 4));
    OK(store_job_set_intent(tx, id, STORE_INTENT_CANCEL, 5));
    OK(store_job_set_intent(tx, id, STORE_INTENT_CANCEL, 6));
    FAILS(store_job_set_intent(tx, id, STORE_INTENT_RUN, 7), ERR_CONFLICT, "being cancelled");
    struct store_events events;
    OK(store_events_list(tx, id, 0, 100, &events));
    assert_int_equal(events.count, 4);
    OK(store_job_transition(tx, id, 0, STORE_JOB_CANCELLED, NULL, 8));
    FAILS(store_job_set_intent(tx, id, STORE_INTENT_CANCEL, 9), ERR_CONFLICT, "it is cancelled");
}

static void test_job_lists(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    for (int i = 1; i <= 25; i++) {
        int64_t id = insert_job(tx, i % 2 ? "odd" : "even", i);
        if (i % 5 == 0)
            OK(store_job_transition(tx, id, 0, STORE_JOB_FAILED, "because", i));
        if (i % 7 == 0 && i % 5)
            OK(store_job_transition(tx, id, 0, STORE_JOB_PREPARING, NULL, i));
    }
    struct store_jobs jobs;
    struct store_page page = {.limit = 10};
    OK(store_jobs_list(tx, NULL, &page, &jobs));
    assert_int_equal(jobs.count, 10);
    assert_true(jobs.more);
    assert_int_equal(jobs.items[0].id, 25);

    /* New jobs do not move the next pages. */
    insert_job(tx, "new", 100);
    int64_t expected = 15, seen = 10;
    while (jobs.more) {
        page.cursor = jobs.items[jobs.count - 1].id;
        OK(store_jobs_list(tx, NULL, &page, &jobs));
        for (size_t i = 0; i < jobs.count; i++, seen++)
            assert_int_equal(jobs.items[i].id, expected--);
        insert_job(tx, "newer", 101);
    }
    assert_int_equal(seen, 25);

    struct store_job_filter filter = {.states = STORE_JOB_MASK(STORE_JOB_FAILED) |
                                                STORE_JOB_MASK(STORE_JOB_PREPARING)};
    page = (struct store_page){.limit = 100, .oldest_first = true};
    OK(store_jobs_list(tx, &filter, &page, &jobs));
    static const int64_t both[] = {5, 7, 10, 14, 15, 20, 21, 25};
    assert_int_equal(jobs.count, 8);
    assert_false(jobs.more);
    for (size_t i = 0; i < jobs.count; i++)
        assert_int_equal(jobs.items[i].id, both[i]);

    filter = (struct store_job_filter){.name = "even", .created_from_s = 4, .created_to_s = 10};
    OK(store_jobs_list(tx, &filter, &page, &jobs));
    assert_int_equal(jobs.count, 3);
    assert_int_equal(jobs.items[0].id, 4);
    assert_int_equal(jobs.items[2].id, 8);

    int64_t counts[STORE_JOB_STATES];
    OK(store_jobs_count(tx, counts));
    assert_int_equal(counts[STORE_JOB_FAILED], 5);
    assert_int_equal(counts[STORE_JOB_PREPARING], 3);
    assert_int_equal(counts[STORE_JOB_RUNNING], 0);
}

static void test_events(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t one = insert_job(tx, "one", 1), two = insert_job(tx, "two", 2), id = 0, last = 0;
    struct store_event event = {
        .job_id = one,
        .attempt = 3,
        .rank = 0,
        .time_s = 5.5,
        .type = "stall",
        .message = "no progress",
        .data_json = "{\"a\":1}",
    };
    OK(store_event_insert(tx, &event, &id));
    OK(store_events_last(tx, &last));
    assert_int_equal(id, 3);
    assert_int_equal(last, 3);
    struct store_events events;
    OK(store_events_list(tx, one, 1, 10, &events));
    assert_int_equal(events.count, 1);
    assert_int_equal(events.items[0].attempt, 3);
    assert_int_equal(events.items[0].rank, 0);
    assert_true(events.items[0].time_s == 5.5);
    assert_string_equal(events.items[0].message, "no progress");
    assert_string_equal(events.items[0].data_json, "{\"a\":1}");
    OK(store_events_list(tx, 0, 0, 2, &events));
    assert_int_equal(events.count, 2);
    assert_true(events.more);
    assert_int_equal(events.items[1].job_id, two);
    assert_int_equal(events.items[1].rank, -1);
    event.job_id = 99;
    FAILS(store_event_insert(tx, &event, NULL), ERR_INTERNAL, "FOREIGN KEY");
}

static void insert_worker(struct store_tx *tx, int64_t job, int64_t attempt, int64_t rank,
                          int64_t node)
{
    struct store_worker worker = {
        .job_id = job, .attempt = attempt, .rank = rank, .node_id = node, .gpu = rank - 1};
    memset(worker.secret_hash, 0xa0 + (int)rank, sizeof worker.secret_hash);
    OK(store_worker_insert(tx, &worker, 11));
}

static void test_attempt_and_worker_round_trip(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t job = insert_job(tx, "j", 1), node = insert_node(tx);
    struct store_attempt attempt;
    OK(store_attempt_begin(tx, job, 0, 10, &attempt));
    assert_int_equal(attempt.number, 1);
    assert_int_equal(attempt.state, STORE_ATTEMPT_STARTING);
    assert_int_equal(attempt.start_step, 0);
    FAILS(store_attempt_begin(tx, job, 0, 10, &attempt), ERR_CONFLICT, "has not ended");
    OK(store_attempt_set_directory(tx, job, 1, "/jobs/1/attempts/1"));
    OK(store_attempt_set_lease(tx, job, 1, 610));
    insert_worker(tx, job, 1, 0, node);
    insert_worker(tx, job, 1, 1, node);
    OK(store_worker_launched(tx, job, 1, 1, 4711, 123456));
    OK(store_worker_started(tx, job, 1, 1, "cpu", 2, 1 << 30, 12));
    FAILS(store_worker_launched(tx, job, 1, 2, 1, 1), ERR_NOT_FOUND, "no rank 2 in attempt 1");

    struct store_worker worker;
    OK(store_worker_get(tx, job, 1, 1, &worker));
    assert_int_equal(worker.state, STORE_WORKER_RUNNING);
    assert_int_equal(worker.pid, 4711);
    assert_int_equal(worker.start_time, 123456);
    assert_int_equal(worker.gpu, 0);
    assert_int_equal(worker.secret_hash[31], 0xa1);
    assert_int_equal(worker.memory_bytes, 1 << 30);
    assert_string_equal(worker.device, "cpu");
    assert_true(worker.created_s == 11 && worker.started_s == 12 && worker.ended_s == 0);
    OK(store_worker_get(tx, job, 1, 0, &worker));
    assert_int_equal(worker.gpu, -1);
    assert_int_equal(worker.state, STORE_WORKER_LAUNCHING);

    OK(store_attempt_set_state(tx, job, 1, STORE_ATTEMPT_RUNNING, NULL));
    FAILS(store_attempt_set_state(tx, job, 1, STORE_ATTEMPT_STARTING, NULL), ERR_CONFLICT,
          "is running and cannot become starting");
    FAILS(store_attempt_end(tx, job, 1, STORE_OUTCOME_DONE, NULL, 20), ERR_CONFLICT,
          "rank 0 of attempt 1");
    struct store_workers workers;
    struct store_attempts attempts;
    OK(store_workers_live(tx, &workers));
    assert_int_equal(workers.count, 2);
    OK(store_attempts_live(tx, &attempts));
    assert_int_equal(attempts.count, 1);

    OK(store_worker_end(tx, job, 1, 0, "error", "invalid", "the file is empty", 19));
    OK(store_worker_end(tx, job, 1, 0, "killed", NULL, "later", 20));
    OK(store_worker_end(tx, job, 1, 1, "killed", NULL, "killed by SIGKILL", 20));
    OK(store_worker_get(tx, job, 1, 0, &worker));
    assert_string_equal(worker.exit_status, "error");
    assert_string_equal(worker.exit_kind, "invalid");
    assert_true(worker.ended_s == 19);
    OK(store_attempt_set_state(tx, job, 1, STORE_ATTEMPT_STOPPING, "rank 0 failed"));
    OK(store_attempt_end(tx, job, 1, STORE_OUTCOME_FAILED, NULL, 21));
    FAILS(store_attempt_end(tx, job, 1, STORE_OUTCOME_FAILED, NULL, 22), ERR_CONFLICT, "before");
    OK(store_attempt_get(tx, job, 1, &attempt));
    assert_int_equal(attempt.outcome, STORE_OUTCOME_FAILED);
    assert_string_equal(attempt.reason, "rank 0 failed");
    assert_string_equal(attempt.directory, "/jobs/1/attempts/1");
    assert_true(attempt.ended_s == 21 && attempt.lease_until_s == 610);
    OK(store_workers_live(tx, &workers));
    assert_int_equal(workers.count, 0);
    OK(store_attempts_live(tx, &attempts));
    assert_int_equal(attempts.count, 0);

    OK(store_attempt_begin(tx, job, 0, 30, &attempt));
    assert_int_equal(attempt.number, 2);
    insert_worker(tx, job, 2, 0, node);
    OK(store_workers_list(tx, job, 0, &workers));
    assert_int_equal(workers.count, 3);
    OK(store_workers_list(tx, job, 2, &workers));
    assert_int_equal(workers.count, 1);
    OK(store_attempts_list(tx, job, &attempts));
    assert_int_equal(attempts.count, 2);
    struct store_job read;
    OK(store_job_get(tx, job, &read));
    assert_int_equal(read.attempts, 2);
}

/* A worker's journal is applied as control does: take the number, and only then the effect. */
static enum store_verdict apply_step(struct store_tx *tx, int64_t job, int64_t attempt, int64_t seq,
                                     int64_t *last)
{
    enum store_verdict verdict;
    OK(store_worker_take_record(tx, job, attempt, 0, seq, &verdict, last));
    if (verdict == STORE_RECORD_NEW) {
        struct store_metric metric = {"loss", 10.0 - (double)seq};
        OK(store_metrics_put(tx, job, seq, 100.0 + (double)seq, &metric, 1));
        OK(store_job_progress(tx, job, seq, 100.0 + (double)seq));
    }
    return verdict;
}

static int64_t count_rows(struct store_tx *tx, const char *sql)
{
    struct store_rows rows;
    OK(store_query(tx, &rows, "count", sql));
    assert_true(store_next(&rows));
    int64_t n = store_int(&rows, 0);
    OK(store_finish(&rows));
    return n;
}

static void test_replay_is_idempotent(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t job = insert_job(tx, "j", 1), node = insert_node(tx), last = 0;
    struct store_attempt attempt;
    OK(store_attempt_begin(tx, job, 0, 10, &attempt));
    insert_worker(tx, job, 1, 0, node);
    for (int64_t seq = 1; seq <= 20; seq++)
        assert_int_equal(apply_step(tx, job, 1, seq, &last), STORE_RECORD_NEW);
    assert_int_equal(last, 20);
    struct store_job before, after;
    OK(store_job_get(tx, job, &before));
    int64_t rows = count_rows(tx, "SELECT count(*) FROM metrics");
    for (int64_t seq = 1; seq <= 20; seq++) {
        assert_int_equal(apply_step(tx, job, 1, seq, &last), STORE_RECORD_OLD);
        assert_int_equal(last, 20);
    }
    assert_int_equal(apply_step(tx, job, 1, 22, &last), STORE_RECORD_GAP);
    assert_int_equal(last, 20);
    OK(store_job_get(tx, job, &after));
    assert_int_equal(after.version, before.version);
    assert_int_equal(after.step, 20);
    assert_int_equal(count_rows(tx, "SELECT count(*) FROM metrics"), rows);
    assert_int_equal(apply_step(tx, job, 1, 21, &last), STORE_RECORD_NEW);

    /* Dead, but its journal still counts until the attempt is ended. */
    OK(store_worker_end(tx, job, 1, 0, "killed", NULL, "killed by SIGKILL", 30));
    assert_int_equal(apply_step(tx, job, 1, 22, &last), STORE_RECORD_NEW);
    OK(store_attempt_end(tx, job, 1, STORE_OUTCOME_FAILED, "rank 0 was killed", 31));
    assert_int_equal(apply_step(tx, job, 1, 23, &last), STORE_RECORD_STALE);
    enum store_verdict verdict;
    FAILS(store_worker_take_record(tx, job, 2, 0, 1, &verdict, &last), ERR_NOT_FOUND,
          "no attempt 2 of job 1");
}

static void test_next_attempt_supersedes_what_lies_beyond(void **state)
{
    struct store_tx *tx = &((struct fixture *)*state)->tx;
    int64_t job = insert_job(tx, "j", 1), other = insert_job(tx, "o", 1), node = insert_node(tx);
    int64_t last;
    struct store_attempt attempt;
    struct store_metric metric = {"loss", 1.0};
    OK(store_attempt_begin(tx, job, 0, 10, &attempt));
    insert_worker(tx, job, 1, 0, node);
    for (int64_t seq = 1; seq <= 20; seq++)
        apply_step(tx, job, 1, seq, &last);
    OK(store_metrics_put(tx, other, 15, 1, &metric, 1));
    int64_t at10 = insert_checkpoint(tx, job, 1, 10), at18 = insert_checkpoint(tx, job, 1, 18);
    OK(store_worker_end(tx, job, 1, 0, "killed", NULL, "killed by SIGKILL", 30));
    OK(store_attempt_end(tx, job, 1, STORE_OUTCOME_FAILED, "rank 0 was killed", 31));
    FAILS(store_attempt_begin(tx, other, at10, 40, &attempt), ERR_CONFLICT, "of another job");

    OK(store_attempt_begin(tx, job, at10, 40, &attempt));
    assert_int_equal(attempt.start_step, 10);
    assert_int_equal(attempt.checkpoint_id, at10);
    struct store_series series;
    OK(store_metrics_series(tx, job, "loss", 0, INT64_MAX, 0, &series));
    assert_int_equal(series.count, 10);
    assert_int_equal(series.steps[9], 10);
    OK(store_metrics_series(tx, other, "loss", 0, INT64_MAX, 0, &series));
    assert_int_equal(series.count, 1);
    struct store_job read;
    OK(store_job_get(tx, job, &read));
    assert_int_equal(read.step, 10);
    struct store_checkpoint checkpoint;
    OK(store_checkpoint_get(tx, at18, &checkpoint));
    assert_true(checkpoint.deleting);
    OK(store_checkpoint_newest(tx, job, &checkpoint));
    assert_int_equal(checkpoint.id, at10);
    struct store_events events;
    OK(store_events_list(tx, job, 0, 100, &events));
    const struct store_event *e = &events.items[events.count - 1];
    assert_string_equal(e->type, "rewind");
    assert_string_equal(e->data_json, "{\"step\":10}");
    assert_int_equal(e->attempt, 2);

    /* The curve has no gap and no duplicate when the new attempt has done the steps again. */
    insert_worker(tx, job, 2, 0, node);
    for (int64_t seq = 1; seq <= 10; seq++) {
        enum store_verdict verdict;
        OK(store_worker_take_record(tx, job, 2, 0, seq, &verdict, &last));
        assert_int_equal(verdict, STORE_RECORD_NEW);
        OK(store_metrics_put(tx, job, 10 + seq, 200, &metric, 1));
    }
    OK(store_metrics_series(tx, job, "loss", 0, INT64_MAX, 0, &series));
    assert_int_equal(series.count, 20);
    for (size_t i = 0; i < 20; i++) {
        assert_int_equal(series.steps[i], i + 1);
        assert_true(series.values[i] == (i < 10 ? 9.0 - (double)i : 1.0));
    }
    FAILS(store_attempt_begin(tx, job, at18, 50, &attempt), ERR_CONFLICT, "being deleted");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_connection, fixture_remove)
    const struct CMUnitTest tests[] = {
        TEST(test_job_round_trip),
        TEST(test_bad_rows_are_refused),
        TEST(test_transitions_write_events),
        TEST(test_every_illegal_transition_is_refused),
        cmocka_unit_test(test_state_names),
        TEST(test_intent),
        TEST(test_job_lists),
        TEST(test_events),
        TEST(test_attempt_and_worker_round_trip),
        TEST(test_replay_is_idempotent),
        TEST(test_next_attempt_supersedes_what_lies_beyond),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
