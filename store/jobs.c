/* Each change of a job's state goes through store_job_transition(): one table says what is legal,
 * one statement writes the row, and the event is written beside it. */
#include "store/jobs.h"

#include "store/events.h"
#include "store/sql.h"

static const char *const state_names[STORE_JOB_STATES] = {
    [STORE_JOB_QUEUED] = "queued",         [STORE_JOB_PREPARING] = "preparing",
    [STORE_JOB_STARTING] = "starting",     [STORE_JOB_RUNNING] = "running",
    [STORE_JOB_RESTARTING] = "restarting", [STORE_JOB_PAUSED] = "paused",
    [STORE_JOB_SUCCEEDED] = "succeeded",   [STORE_JOB_FAILED] = "failed",
    [STORE_JOB_CANCELLED] = "cancelled",
};

static const char *const intent_names[] = {
    [STORE_INTENT_RUN] = "run",
    [STORE_INTENT_PAUSE] = "pause",
    [STORE_INTENT_CANCEL] = "cancel",
};
#define INTENTS 3

#define TO(state) STORE_JOB_MASK(STORE_JOB_##state)
#define STOPPED (TO(PAUSED) | TO(FAILED) | TO(CANCELLED))
/* From each state, where to. A queued job whose dataset is known skips preparing; a prepared one
 * may have to queue for slots; a resumed one queues. */
static const unsigned legal[STORE_JOB_STATES] = {
    [STORE_JOB_QUEUED] = TO(PREPARING) | TO(STARTING) | STOPPED,
    [STORE_JOB_PREPARING] = TO(QUEUED) | TO(STARTING) | STOPPED,
    [STORE_JOB_STARTING] = TO(RUNNING) | TO(RESTARTING) | STOPPED,
    [STORE_JOB_RUNNING] = TO(SUCCEEDED) | TO(RESTARTING) | STOPPED,
    [STORE_JOB_RESTARTING] = TO(STARTING) | STOPPED,
    [STORE_JOB_PAUSED] = TO(QUEUED) | TO(FAILED) | TO(CANCELLED),
};

const char *store_job_state_name(enum store_job_state state)
{
    return state_names[state];
}

bool store_job_state_parse(const char *name, enum store_job_state *state)
{
    int index;
    bool found = store_name_parse(name, state_names, STORE_JOB_STATES, &index);
    if (found)
        *state = index;
    return found;
}

const char *store_intent_name(enum store_intent intent)
{
    return intent_names[intent];
}

bool store_job_transition_legal(enum store_job_state from, enum store_job_state to)
{
    return legal[from] & STORE_JOB_MASK(to);
}

/* ---- reading ---- */

#define SELECT                                                                                     \
    "SELECT id, name, state, intent, reason, spec_json, device, world, steps, step, attempts,"     \
    " restarts, dataset_id, created_by, created_s, updated_s, started_s, finished_s, progress_s,"  \
    " not_before_s, version FROM jobs"

static void read_job(struct store_rows *rows, struct store_job *job)
{
    *job = (struct store_job){
        .id = store_int(rows, 0),
        .name = store_text(rows, 1),
        .state = store_name(rows, 2, state_names, STORE_JOB_STATES, 0),
        .intent = store_name(rows, 3, intent_names, INTENTS, 0),
        .reason = store_text(rows, 4),
        .spec_json = store_text(rows, 5),
        .device = store_text(rows, 6),
        .world = store_int(rows, 7),
        .steps = store_int(rows, 8),
        .step = store_int(rows, 9),
        .attempts = store_int(rows, 10),
        .restarts = store_int(rows, 11),
        .dataset_id = store_int(rows, 12),
        .created_by = store_text(rows, 13),
        .created_s = store_real(rows, 14),
        .updated_s = store_real(rows, 15),
        .started_s = store_real(rows, 16),
        .finished_s = store_real(rows, 17),
        .progress_s = store_real(rows, 18),
        .not_before_s = store_real(rows, 19),
        .version = store_int(rows, 20),
    };
}

static struct err *no_job(int64_t id)
{
    return err_new(ERR_NOT_FOUND, "there is no job %lld", (long long)id);
}

struct err *store_job_get(struct store_tx *tx, int64_t id, struct store_job *job)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "read a job", SELECT " WHERE id = ?", V_INT(id)));
    bool found = store_next(&rows);
    if (found)
        read_job(&rows, job);
    TRY(store_finish(&rows));
    return found ? NULL : no_job(id);
}

struct err *store_jobs_list(struct store_tx *tx, const struct store_job_filter *filter,
                            const struct store_page *page, struct store_jobs *jobs)
{
    *jobs = (struct store_jobs){0};
    struct store_where where;
    store_where_begin(&where, SELECT);
    if (filter) {
        store_where_in(&where, "state", filter->states, state_names, STORE_JOB_STATES);
        if (filter->name)
            store_where_and(&where, "name = ?", V_TEXT(filter->name));
        if (filter->created_from_s != 0)
            store_where_and(&where, "created_s >= ?", V_REAL(filter->created_from_s));
        if (filter->created_to_s != 0)
            store_where_and(&where, "created_s < ?", V_REAL(filter->created_to_s));
    }
    struct store_rows rows;
    TRY(store_where_page(tx, &where, page, &rows, "list jobs"));
    while (store_next(&rows)) {
        struct store_job *job = STORE_PUSH(&rows, jobs);
        if (job)
            read_job(&rows, job);
    }
    STORE_CUT_PAGE(jobs, page->limit);
    return store_finish(&rows);
}

struct err *store_jobs_count(struct store_tx *tx, int64_t counts[STORE_JOB_STATES])
{
    for (int i = 0; i < STORE_JOB_STATES; i++)
        counts[i] = 0;
    struct store_rows rows;
    TRY(store_query(tx, &rows, "count jobs", "SELECT state, count(*) FROM jobs GROUP BY state"));
    while (store_next(&rows))
        counts[store_name(&rows, 0, state_names, STORE_JOB_STATES, 0)] = store_int(&rows, 1);
    return store_finish(&rows);
}

/* ---- writing ---- */

struct err *store_job_insert(struct store_tx *tx, const struct store_job *job, double now_s,
                             int64_t *id)
{
    TRY(store_exec(tx, "write a job",
                   "INSERT INTO jobs (name, state, intent, spec_json, device, world, steps,"
                   " created_by, created_s, updated_s)"
                   " VALUES (?1, 'queued', 'run', ?2, ?3, ?4, ?5, ?6, ?7, ?7)",
                   V_TEXT(job->name), V_TEXT(job->spec_json), V_TEXT(job->device),
                   V_INT(job->world), V_INT(job->steps), V_TEXT(job->created_by), V_REAL(now_s)));
    *id = sqlite3_last_insert_rowid(tx->db);
    struct store_event event = {
        .job_id = *id, .rank = -1, .time_s = now_s, .type = "state", .to = "queued"};
    return store_event_insert(tx, &event, NULL);
}

struct err *store_job_transition(struct store_tx *tx, int64_t id, unsigned from,
                                 enum store_job_state to, const char *reason, double now_s)
{
    struct store_job job;
    TRY(store_job_get(tx, id, &job));
    bool expected = !from || (from & STORE_JOB_MASK(job.state));
    if (!expected || !store_job_transition_legal(job.state, to))
        return err_new(ERR_CONFLICT, "job %lld is %s and cannot become %s", (long long)id,
                       state_names[job.state], state_names[to]);
    bool over = STORE_JOB_MASK(to) & STORE_JOB_OVER;
    bool clears = to == STORE_JOB_QUEUED || to == STORE_JOB_STARTING;
    bool starts = to == STORE_JOB_RUNNING && job.started_s == 0;
    TRY(store_exec(tx, "write a job's state",
                   "UPDATE jobs SET state = ?2, reason = ?3, updated_s = ?4, started_s = ?5,"
                   " finished_s = ?6, not_before_s = ?7, version = version + 1 WHERE id = ?1",
                   V_INT(id), V_TEXT(state_names[to]), V_TEXT(reason), V_REAL(now_s),
                   V_TIME(starts ? now_s : job.started_s), over ? V_REAL(now_s) : V_NULL,
                   V_TIME(clears ? 0 : job.not_before_s)));
    struct store_event event = {
        .job_id = id,
        .attempt = job.attempts,
        .rank = -1,
        .time_s = now_s,
        .type = "state",
        .from = state_names[job.state],
        .to = state_names[to],
        .message = reason,
    };
    return store_event_insert(tx, &event, NULL);
}

struct err *store_job_set_intent(struct store_tx *tx, int64_t id, enum store_intent intent,
                                 double now_s)
{
    struct store_job job;
    TRY(store_job_get(tx, id, &job));
    if (STORE_JOB_MASK(job.state) & STORE_JOB_OVER)
        return err_new(ERR_CONFLICT, "job %lld is over: it is %s", (long long)id,
                       state_names[job.state]);
    if (job.intent == intent)
        return NULL;
    if (job.intent == STORE_INTENT_CANCEL)
        return err_new(ERR_CONFLICT, "job %lld is being cancelled", (long long)id);
    TRY(store_exec(tx, "write what is asked of a job",
                   "UPDATE jobs SET intent = ?2, updated_s = ?3, version = version + 1"
                   " WHERE id = ?1",
                   V_INT(id), V_TEXT(intent_names[intent]), V_REAL(now_s)));
    static const char *const messages[] = {
        [STORE_INTENT_RUN] = "asked to run",
        [STORE_INTENT_PAUSE] = "asked to pause",
        [STORE_INTENT_CANCEL] = "asked to end",
    };
    struct store_event event = {
        .job_id = id,
        .attempt = job.attempts,
        .rank = -1,
        .time_s = now_s,
        .type = "intent",
        .message = messages[intent],
    };
    return store_event_insert(tx, &event, NULL);
}

/* The end of each single-row update of a job. */
static struct err *expect_job(int64_t id, int64_t changed)
{
    return changed ? NULL : no_job(id);
}

struct err *store_job_set_dataset(struct store_tx *tx, int64_t id, int64_t dataset_id, double now_s)
{
    int64_t changed;
    TRY(store_change(tx, "write a job's dataset", &changed,
                     "UPDATE jobs SET dataset_id = ?2, updated_s = ?3, version = version + 1"
                     " WHERE id = ?1",
                     V_INT(id), V_ID(dataset_id), V_REAL(now_s)));
    return expect_job(id, changed);
}

struct err *store_job_set_spec(struct store_tx *tx, int64_t id, const char *spec_json,
                               int64_t world, double now_s)
{
    int64_t changed;
    TRY(store_change(tx, "write a job's spec", &changed,
                     "UPDATE jobs SET spec_json = ?2, world = ?3, updated_s = ?4,"
                     " version = version + 1 WHERE id = ?1",
                     V_INT(id), V_TEXT(spec_json), V_INT(world), V_REAL(now_s)));
    TRY(expect_job(id, changed));
    struct store_event event = {
        .job_id = id,
        .rank = -1,
        .time_s = now_s,
        .type = "spec",
        .message = "its parallelism was changed",
    };
    return store_event_insert(tx, &event, NULL);
}

struct err *store_job_set_restarts(struct store_tx *tx, int64_t id, int64_t restarts,
                                   double not_before_s, double now_s)
{
    int64_t changed;
    TRY(store_change(tx, "write a job's restarts", &changed,
                     "UPDATE jobs SET restarts = ?2, not_before_s = ?3, updated_s = ?4,"
                     " version = version + 1 WHERE id = ?1",
                     V_INT(id), V_INT(restarts), V_TIME(not_before_s), V_REAL(now_s)));
    return expect_job(id, changed);
}

struct err *store_job_progress(struct store_tx *tx, int64_t id, int64_t step, double now_s)
{
    int64_t changed;
    TRY(store_change(tx, "write a job's progress", &changed,
                     "UPDATE jobs SET step = max(step, ?2), progress_s = ?3, updated_s = ?3,"
                     " version = version + 1 WHERE id = ?1",
                     V_INT(id), V_INT(step), V_REAL(now_s)));
    return expect_job(id, changed);
}
