#include "daemon/control/outcome.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/json.h"
#include "daemon/plan/spec.h"
#include "store/jobs.h"
#include "store/tasks.h"

#define BACKOFF_MOST_S 600.0

static bool is(const char *text, const char *value)
{
    return text && strcmp(text, value) == 0;
}

/* It stopped since its lease was over. The ranks agree on that, but not all may have seen it. */
static bool lease_over(const struct store_worker *w)
{
    return is(w->exit_status, "stopped") && is(w->exit_kind, err_kind_name(ERR_TIMEOUT));
}

/* The first worker that ended badly, those left out that only lost their peers or did as they were
 * told; of those the first, if there is no other. NULL: all are done. */
static const struct store_worker *cause(const struct store_workers *workers)
{
    const struct store_worker *best = NULL;
    int best_rank = 0;
    for (size_t i = 0; i < workers->count; i++) {
        const struct store_worker *w = &workers->items[i];
        if (is(w->exit_status, "done"))
            continue;
        int rank = is(w->exit_status, "stopped") ? (lease_over(w) ? 1 : 0)
                   : is(w->exit_kind, "aborted") ? 2
                                                 : 3;
        if (!best || rank > best_rank || (rank == best_rank && w->ended_s < best->ended_s)) {
            best = w;
            best_rank = rank;
        }
    }
    return best;
}

/* restart.max of the job's spec. */
static struct err *restart_max(const struct store_job *job, int *out)
{
    cJSON *json;
    TRY(json_parse(job->spec_json, strlen(job->spec_json), &json));
    const cJSON *restart = cJSON_GetObjectItemCaseSensitive(json, "restart");
    const cJSON *max = cJSON_GetObjectItemCaseSensitive(restart, "max");
    *out = cJSON_IsNumber(max) ? max->valueint : 0;
    cJSON_Delete(json);
    return NULL;
}

static void describe(const struct store_worker *w, char *out, size_t size)
{
    if (is(w->exit_kind, "aborted"))
        snprintf(out, size, "rank %lld lost its peers: %s", (long long)w->rank,
                 w->reason ? w->reason : "no reason is known");
    else
        snprintf(out, size, "rank %lld %s%s", (long long)w->rank,
                 is(w->exit_status, "error") ? "failed: " : "",
                 w->reason ? w->reason : "ended without a reason");
}

/* Its process ended before it began, unseen: the daemon died while it started it, and the process,
 * which nobody told who it was, went too. That says nothing about the job. */
static bool never_began(const struct store_worker *w)
{
    return w->started_s == 0 && is(w->exit_kind, OUTCOME_UNSEEN);
}

/* A restart that restart.max does not count. */
static struct err *begin_again(struct store_tx *tx, const struct store_job *job, const char *reason,
                               double wait_s, double now_s)
{
    TRY(store_job_transition(tx, job->id, 0, STORE_JOB_RESTARTING, reason, now_s));
    return store_job_set_restarts(tx, job->id, job->restarts, now_s + wait_s, now_s);
}

static struct err *succeed(struct store_tx *tx, const struct store_job *job, double now_s)
{
    if (job->state == STORE_JOB_STARTING) /* a rank's `started` was lost with its journal */
        TRY(store_job_transition(tx, job->id, 0, STORE_JOB_RUNNING, NULL, now_s));
    return store_job_transition(tx, job->id, 0, STORE_JOB_SUCCEEDED, NULL, now_s);
}

/* Nothing more of the job begins before its backoff is over. */
static struct err *count_restart(struct store_tx *tx, const struct store_job *job, double backoff_s,
                                 double now_s)
{
    double wait_s = backoff_s;
    for (int64_t i = 0; i < job->restarts && wait_s < BACKOFF_MOST_S; i++)
        wait_s *= 2;
    if (wait_s > BACKOFF_MOST_S)
        wait_s = BACKOFF_MOST_S;
    return store_job_set_restarts(tx, job->id, job->restarts + 1, now_s + wait_s, now_s);
}

static struct err *fail(struct store_tx *tx, const struct store_job *job,
                        const struct store_worker *w, const char *why, double backoff_s,
                        double now_s)
{
    char reason[1400];
    int max;
    TRY(restart_max(job, &max));
    if (is(w->exit_kind, "invalid"))
        return store_job_transition(tx, job->id, 0, STORE_JOB_FAILED, why, now_s);
    if (job->restarts >= max) {
        if (max > 0)
            snprintf(reason, sizeof reason, "%s (restarted %lld times, restart.max is %d)", why,
                     (long long)job->restarts, max);
        return store_job_transition(tx, job->id, 0, STORE_JOB_FAILED, max > 0 ? reason : why,
                                    now_s);
    }
    snprintf(reason, sizeof reason, "attempt %lld: %s; restart %lld of %d follows",
             (long long)job->attempts, why, (long long)job->restarts + 1, max);
    TRY(store_job_transition(tx, job->id, 0, STORE_JOB_RESTARTING, reason, now_s));
    return count_restart(tx, job, backoff_s, now_s);
}

struct err *outcome_of_attempt(struct store_tx *tx, int64_t job_id, int64_t attempt,
                               double backoff_s)
{
    struct store_job job;
    struct store_workers workers;
    double now_s = store_now();
    char why[1200];
    TRY(store_job_get(tx, job_id, &job));
    TRY(store_workers_list(tx, job_id, attempt, &workers));
    const struct store_worker *w = cause(&workers);
    if (!w) {
        TRY(store_attempt_end(tx, job_id, attempt, STORE_OUTCOME_DONE, NULL, now_s));
        return succeed(tx, &job, now_s);
    }
    if (job.intent == STORE_INTENT_CANCEL) {
        TRY(store_attempt_end(tx, job_id, attempt, STORE_OUTCOME_STOPPED, NULL, now_s));
        return store_job_transition(tx, job_id, 0, STORE_JOB_CANCELLED, "cancelled on request",
                                    now_s);
    }
    bool stopped = is(w->exit_status, "stopped");
    if (stopped && job.intent == STORE_INTENT_PAUSE) {
        TRY(store_attempt_end(tx, job_id, attempt, STORE_OUTCOME_STOPPED, NULL, now_s));
        return store_job_transition(tx, job_id, 0, STORE_JOB_PAUSED, "paused on request", now_s);
    }
    struct store_attempt ended;
    TRY(store_attempt_get(tx, job_id, attempt, &ended));
    if (lease_over(w)) { /* nobody's fault */
        TRY(store_attempt_end(tx, job_id, attempt, STORE_OUTCOME_STOPPED, w->reason, now_s));
        return begin_again(tx, &job, w->reason, backoff_s, now_s);
    }
    describe(w, why, sizeof why);
    if (stopped && ended.reason) /* all ended as they were told to: why they were is the reason */
        snprintf(why, sizeof why, "%s", ended.reason);
    TRY(store_attempt_end(tx, job_id, attempt, STORE_OUTCOME_FAILED, why, now_s));
    if (never_began(w))
        return begin_again(tx, &job, "the daemon was restarted before the workers had begun",
                           backoff_s, now_s);
    return fail(tx, &job, w, why, backoff_s, now_s);
}

/* What may go better the next time. */
static bool may_pass(const struct outcome *o)
{
    return is(o->status, "killed") || is(o->kind, err_kind_name(ERR_IO)) ||
           is(o->kind, err_kind_name(ERR_NO_MEMORY));
}

/* A preparation counts as an attempt does: *again when it is queued once more. */
static struct err *try_again(struct store_tx *tx, const struct store_task *task,
                             const struct outcome *o, double backoff_s, bool *again)
{
    struct store_job job;
    char reason[1400];
    *again = false;
    if (task->type != STORE_TASK_PREPARE || !task->job_id || !may_pass(o))
        return NULL;
    TRY(store_job_get(tx, task->job_id, &job));
    int max;
    TRY(restart_max(&job, &max));
    if (job.intent != STORE_INTENT_RUN || job.restarts >= max)
        return NULL;
    *again = true;
    snprintf(reason, sizeof reason, "%s%s; restart %lld of %d follows",
             is(o->status, "killed") ? "it " : "",
             o->reason ? o->reason : "it ended without a reason", (long long)job.restarts + 1, max);
    TRY(store_task_transition(tx, task->id, 0, STORE_TASK_QUEUED, NULL, reason, o->time_s));
    return count_restart(tx, &job, backoff_s, store_now());
}

struct err *outcome_of_task(struct store_tx *tx, int64_t task_id, const struct outcome *o,
                            double backoff_s)
{
    bool again;
    struct store_task task;
    char reason[1200];
    TRY(store_task_get(tx, task_id, &task));
    if (task.state != STORE_TASK_RUNNING)
        return NULL;
    if (task.cancel_requested)
        return store_task_transition(tx, task_id, 0, STORE_TASK_CANCELLED, NULL, task.reason,
                                     o->time_s);
    if (is(o->kind, OUTCOME_UNSEEN)) /* perhaps the whole machine went down: nobody's fault */
        return store_task_transition(tx, task_id, 0, STORE_TASK_QUEUED, NULL,
                                     "its process was gone when the daemon came back", o->time_s);
    TRY(try_again(tx, &task, o, backoff_s, &again));
    if (again)
        return NULL;
    if (is(o->status, "done"))
        snprintf(reason, sizeof reason, "it ended, but reported no result");
    else
        snprintf(reason, sizeof reason, "%s", o->reason ? o->reason : "it ended without a reason");
    return store_task_transition(tx, task_id, 0, STORE_TASK_FAILED, NULL, reason, o->time_s);
}
