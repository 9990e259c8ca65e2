/* What is asked of jobs and tasks that exist: cancel, pause, resume, checkpoint.
 *
 * What is asked is an intent in the job's row. Where nothing of the job runs, the state follows in
 * the same transaction; otherwise control sees the intent and brings the state there. Asking twice
 * is no mistake.
 */
#include "api/present.h"
#include "api/reshape.h"
#include "api/routes.h"

#define TASKS_MOST 500

/* States in which nothing of the job runs. */
#define IDLE                                                                                       \
    (STORE_JOB_MASK(STORE_JOB_QUEUED) | STORE_JOB_MASK(STORE_JOB_PREPARING) |                      \
     STORE_JOB_MASK(STORE_JOB_RESTARTING) | STORE_JOB_MASK(STORE_JOB_PAUSED))

static struct err *cancel_tasks(struct store_tx *tx, int64_t job_id, double now_s)
{
    struct store_task_filter filter = {
        .states = STORE_TASK_MASK(STORE_TASK_QUEUED) | STORE_TASK_MASK(STORE_TASK_RUNNING),
        .job_id = job_id,
    };
    struct store_page page = {.limit = TASKS_MOST};
    struct store_tasks tasks;
    TRY(store_tasks_list(tx, &filter, &page, &tasks));
    for (size_t i = 0; i < tasks.count; i++)
        TRY(store_task_cancel(tx, tasks.items[i].id, "its job was cancelled", now_s));
    return NULL;
}

static struct err *cancel_job(struct store_tx *tx, struct request *r, const struct store_job *job,
                              double now_s)
{
    (void)r;
    if (job->state == STORE_JOB_CANCELLED)
        return NULL;
    TRY(store_job_set_intent(tx, job->id, STORE_INTENT_CANCEL, now_s));
    if (!(STORE_JOB_MASK(job->state) & IDLE))
        return NULL;
    TRY(store_job_transition(tx, job->id, IDLE, STORE_JOB_CANCELLED, "cancelled on request",
                             now_s));
    return cancel_tasks(tx, job->id, now_s);
}

static struct err *pause_job(struct store_tx *tx, struct request *r, const struct store_job *job,
                             double now_s)
{
    (void)r;
    TRY(store_job_set_intent(tx, job->id, STORE_INTENT_PAUSE, now_s));
    if (job->state == STORE_JOB_PAUSED || !(STORE_JOB_MASK(job->state) & IDLE))
        return NULL;
    return store_job_transition(tx, job->id, IDLE, STORE_JOB_PAUSED, "paused on request", now_s);
}

static struct err *resume_job(struct store_tx *tx, struct request *r, const struct store_job *job,
                              double now_s)
{
    bool answered = false;
    if (r->body_bytes)
        TRY(reshape(tx, r, job, &answered));
    if (answered)
        return NULL;
    TRY(store_job_set_intent(tx, job->id, STORE_INTENT_RUN, now_s));
    if (job->state != STORE_JOB_PAUSED)
        return NULL;
    return store_job_transition(tx, job->id, 0, STORE_JOB_QUEUED, "resumed on request", now_s);
}

typedef struct err *act_fn(struct store_tx *tx, struct request *r, const struct store_job *job,
                           double now_s);

static struct err *act(struct store_tx *tx, struct request *r, act_fn *fn)
{
    struct store_job job;
    cJSON *before, *after;
    bool matches;
    TRY(store_job_get(tx, r->id, &job));
    if (r->if_match) {
        TRY(present_job_whole(tx, r->id, &before));
        TRY(request_matches(r, before, &matches));
        if (!matches)
            return NULL;
    }
    request_clear_reply(r); /* this may run twice */
    TRY(fn(tx, r, &job, store_now()));
    if (r->status)
        return NULL;
    TRY(present_job_whole(tx, r->id, &after));
    request_reply_json(r, 200, after);
    return NULL;
}

static struct err *write_cancel(struct store_tx *tx, struct request *r)
{
    return act(tx, r, cancel_job);
}

static struct err *write_pause(struct store_tx *tx, struct request *r)
{
    return act(tx, r, pause_job);
}

static struct err *write_resume(struct store_tx *tx, struct request *r)
{
    return act(tx, r, resume_job);
}

void route_job_cancel(struct request *r)
{
    if (request_query(r, NULL, 0))
        request_write_once(r, write_cancel);
}

void route_job_pause(struct request *r)
{
    if (request_query(r, NULL, 0))
        request_write_once(r, write_pause);
}

void route_job_resume(struct request *r)
{
    if (request_query(r, NULL, 0))
        request_write_once(r, write_resume);
}

/* ---- A checkpoint on demand ---- */

static struct err *check_running(struct store_tx *tx, struct request *r)
{
    struct store_job job;
    TRY(store_job_get(tx, r->id, &job));
    return job.state == STORE_JOB_RUNNING
               ? NULL
               : err_new(ERR_CONFLICT, "job %lld is %s: a checkpoint is written while it runs",
                         (long long)job.id, store_job_state_name(job.state));
}

static struct err *reply_job(struct store_tx *tx, struct request *r)
{
    cJSON *json;
    TRY(present_job_whole(tx, r->id, &json));
    request_reply_json(r, 202, json);
    return NULL;
}

static void go_checkpoint(struct request *r)
{
    if (r->control->checkpoint(r->control->user, r->id))
        request_read(r, reply_job);
    else
        request_reply_problem(r, 409, "conflict", NULL,
                              "No ranks of job %lld are there to write a checkpoint.",
                              (long long)r->id);
}

void route_job_checkpoint(struct request *r)
{
    if (!request_query(r, NULL, 0))
        return;
    r->next = go_checkpoint;
    request_read(r, check_running);
}

/* ---- Tasks ---- */

static struct err *write_task_cancel(struct store_tx *tx, struct request *r)
{
    struct store_task task;
    bool matches = true;
    TRY(store_task_get(tx, r->id, &task));
    if (r->if_match)
        TRY(request_matches(r, present_task(&task), &matches));
    if (!matches)
        return NULL;
    if (task.state != STORE_TASK_CANCELLED && !task.cancel_requested)
        TRY(store_task_cancel(tx, r->id, "cancelled on request", store_now()));
    TRY(store_task_get(tx, r->id, &task));
    request_reply_json(r, 200, present_task(&task));
    return NULL;
}

void route_task_cancel(struct request *r)
{
    if (request_query(r, NULL, 0))
        request_write_once(r, write_task_cancel);
}
