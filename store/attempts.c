#include "store/attempts.h"

#include <stdio.h>

#include "store/checkpoints.h"
#include "store/events.h"
#include "store/jobs.h"
#include "store/sql.h"

static const char *const state_names[] = {
    [STORE_ATTEMPT_STARTING] = "starting",
    [STORE_ATTEMPT_RUNNING] = "running",
    [STORE_ATTEMPT_STOPPING] = "stopping",
    [STORE_ATTEMPT_ENDED] = "ended",
};
#define STATES 4

static const char *const outcome_names[] = {
    [STORE_OUTCOME_NONE] = NULL,
    [STORE_OUTCOME_DONE] = "done",
    [STORE_OUTCOME_STOPPED] = "stopped",
    [STORE_OUTCOME_FAILED] = "failed",
};
#define OUTCOMES 4

const char *store_attempt_state_name(enum store_attempt_state state)
{
    return state_names[state];
}

const char *store_outcome_name(enum store_outcome outcome)
{
    return outcome_names[outcome];
}

/* ---- reading ---- */

#define SELECT                                                                                     \
    "SELECT job_id, number, state, outcome, reason, directory, checkpoint_id, start_step,"         \
    " created_s, ended_s, lease_until_s FROM attempts "

static void read_attempt(struct store_rows *rows, struct store_attempt *attempt)
{
    *attempt = (struct store_attempt){
        .job_id = store_int(rows, 0),
        .number = store_int(rows, 1),
        .state = store_name(rows, 2, state_names, STATES, 0),
        .outcome = store_name(rows, 3, outcome_names, OUTCOMES, STORE_OUTCOME_NONE),
        .reason = store_text(rows, 4),
        .directory = store_text(rows, 5),
        .checkpoint_id = store_int(rows, 6),
        .start_step = store_int(rows, 7),
        .created_s = store_real(rows, 8),
        .ended_s = store_real(rows, 9),
        .lease_until_s = store_real(rows, 10),
    };
}

static struct err *no_attempt(int64_t job_id, int64_t number)
{
    return err_new(ERR_NOT_FOUND, "there is no attempt %lld of job %lld", (long long)number,
                   (long long)job_id);
}

struct err *store_attempt_get(struct store_tx *tx, int64_t job_id, int64_t number,
                              struct store_attempt *attempt)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "read an attempt", SELECT "WHERE job_id = ? AND number = ?",
                    V_INT(job_id), V_INT(number)));
    bool found = store_next(&rows);
    if (found)
        read_attempt(&rows, attempt);
    TRY(store_finish(&rows));
    return found ? NULL : no_attempt(job_id, number);
}

static struct err *read_list(struct store_rows *rows, struct store_attempts *attempts)
{
    *attempts = (struct store_attempts){0};
    while (store_next(rows)) {
        struct store_attempt *attempt = STORE_PUSH(rows, attempts);
        if (attempt)
            read_attempt(rows, attempt);
    }
    return store_finish(rows);
}

struct err *store_attempts_list(struct store_tx *tx, int64_t job_id,
                                struct store_attempts *attempts)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "list attempts", SELECT "WHERE job_id = ? ORDER BY number",
                    V_INT(job_id)));
    return read_list(&rows, attempts);
}

struct err *store_attempts_live(struct store_tx *tx, struct store_attempts *attempts)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "list living attempts",
                    SELECT "WHERE state <> 'ended' ORDER BY job_id"));
    return read_list(&rows, attempts);
}

/* ---- beginning ---- */

/* What an earlier attempt did beyond `step` did not happen: its metrics go, its checkpoints (there
 * are some when a newer one was found damaged) are marked, and clients are told. */
static struct err *rewind_job(struct store_tx *tx, const struct store_job *job, int64_t number,
                              int64_t step, double now_s)
{
    int64_t metrics, checkpoints;
    TRY(store_change(tx, "delete superseded metrics", &metrics,
                     "DELETE FROM metrics WHERE job_id = ?"
                     " AND key_id IN (SELECT id FROM metric_keys) AND step > ?",
                     V_INT(job->id), V_INT(step)));
    TRY(store_change(tx, "mark superseded checkpoints", &checkpoints,
                     "UPDATE checkpoints SET deleting = 1"
                     " WHERE job_id = ? AND step > ? AND deleting = 0",
                     V_INT(job->id), V_INT(step)));
    if (job->step <= step && !metrics && !checkpoints)
        return NULL;
    char message[96], data[32];
    snprintf(message, sizeof message,
             "steps after %lld are superseded: training goes on from there", (long long)step);
    snprintf(data, sizeof data, "{\"step\":%lld}", (long long)step);
    struct store_event event = {
        .job_id = job->id,
        .attempt = number,
        .rank = -1,
        .time_s = now_s,
        .type = "rewind",
        .message = message,
        .data_json = data,
    };
    return store_event_insert(tx, &event, NULL);
}

static struct err *start_step(struct store_tx *tx, int64_t job_id, int64_t checkpoint_id,
                              int64_t *step)
{
    *step = 0;
    if (!checkpoint_id)
        return NULL;
    struct store_checkpoint checkpoint;
    TRY(store_checkpoint_get(tx, checkpoint_id, &checkpoint));
    if (checkpoint.job_id != job_id || checkpoint.deleting)
        return err_new(ERR_CONFLICT, "checkpoint %lld %s; job %lld cannot go on from it",
                       (long long)checkpoint_id,
                       checkpoint.deleting ? "is being deleted" : "is of another job",
                       (long long)job_id);
    *step = checkpoint.step;
    return NULL;
}

struct err *store_attempt_begin(struct store_tx *tx, int64_t job_id, int64_t checkpoint_id,
                                double now_s, struct store_attempt *attempt)
{
    struct store_job job;
    int64_t step = 0;
    TRY(store_job_get(tx, job_id, &job));
    TRY(start_step(tx, job_id, checkpoint_id, &step));
    struct store_attempts attempts;
    TRY(store_attempts_list(tx, job_id, &attempts));
    int64_t number = (int64_t)attempts.count + 1;
    if (number > 1 && attempts.items[number - 2].state != STORE_ATTEMPT_ENDED)
        return err_new(ERR_CONFLICT,
                       "attempt %lld of job %lld has not ended; the next one cannot begin",
                       (long long)number - 1, (long long)job_id);
    TRY(store_exec(tx, "write an attempt",
                   "INSERT INTO attempts (job_id, number, state, checkpoint_id, start_step,"
                   " created_s) VALUES (?, ?, 'starting', ?, ?, ?)",
                   V_INT(job_id), V_INT(number), V_ID(checkpoint_id), V_INT(step), V_REAL(now_s)));
    TRY(rewind_job(tx, &job, number, step, now_s));
    TRY(store_exec(tx, "write a job's attempt",
                   "UPDATE jobs SET attempts = ?2, step = ?3, progress_s = ?4, updated_s = ?4,"
                   " version = version + 1 WHERE id = ?1",
                   V_INT(job_id), V_INT(number), V_INT(step), V_REAL(now_s)));
    return store_attempt_get(tx, job_id, number, attempt);
}

/* ---- going on ---- */

struct err *store_attempt_set_directory(struct store_tx *tx, int64_t job_id, int64_t number,
                                        const char *directory)
{
    int64_t changed;
    TRY(store_change(tx, "write an attempt's directory", &changed,
                     "UPDATE attempts SET directory = ? WHERE job_id = ? AND number = ?",
                     V_TEXT(directory), V_INT(job_id), V_INT(number)));
    return changed ? NULL : no_attempt(job_id, number);
}

struct err *store_attempt_set_lease(struct store_tx *tx, int64_t job_id, int64_t number,
                                    double lease_until_s)
{
    int64_t changed;
    TRY(store_change(tx, "write an attempt's lease", &changed,
                     "UPDATE attempts SET lease_until_s = ? WHERE job_id = ? AND number = ?",
                     V_TIME(lease_until_s), V_INT(job_id), V_INT(number)));
    return changed ? NULL : no_attempt(job_id, number);
}

struct err *store_attempt_set_state(struct store_tx *tx, int64_t job_id, int64_t number,
                                    enum store_attempt_state state, const char *reason)
{
    struct store_attempt attempt;
    TRY(store_attempt_get(tx, job_id, number, &attempt));
    if (state <= attempt.state || state == STORE_ATTEMPT_ENDED)
        return err_new(ERR_CONFLICT, "attempt %lld of job %lld is %s and cannot become %s",
                       (long long)number, (long long)job_id, state_names[attempt.state],
                       state_names[state]);
    return store_exec(tx, "write an attempt's state",
                      "UPDATE attempts SET state = ?, reason = coalesce(?, reason)"
                      " WHERE job_id = ? AND number = ?",
                      V_TEXT(state_names[state]), V_TEXT(reason), V_INT(job_id), V_INT(number));
}

struct err *store_attempt_end(struct store_tx *tx, int64_t job_id, int64_t number,
                              enum store_outcome outcome, const char *reason, double now_s)
{
    struct store_attempt attempt;
    TRY(store_attempt_get(tx, job_id, number, &attempt));
    if (attempt.state == STORE_ATTEMPT_ENDED)
        return err_new(ERR_CONFLICT, "attempt %lld of job %lld has ended before", (long long)number,
                       (long long)job_id);
    struct store_workers workers;
    TRY(store_workers_list(tx, job_id, number, &workers));
    for (size_t i = 0; i < workers.count; i++)
        if (workers.items[i].state != STORE_WORKER_ENDED)
            return err_new(ERR_CONFLICT,
                           "rank %lld of attempt %lld of job %lld may still live; the attempt has "
                           "not ended",
                           (long long)workers.items[i].rank, (long long)number, (long long)job_id);
    return store_exec(tx, "end an attempt",
                      "UPDATE attempts SET state = 'ended', outcome = ?,"
                      " reason = coalesce(?, reason), ended_s = ? WHERE job_id = ? AND number = ?",
                      V_TEXT(outcome_names[outcome]), V_TEXT(reason), V_REAL(now_s), V_INT(job_id),
                      V_INT(number));
}
