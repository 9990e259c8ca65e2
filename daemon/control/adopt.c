/* A daemon that starts finds what an earlier one left: attempts and tasks that have not ended.
 *
 * Each becomes a run again. A process that still lives (same pid, same start time) is watched and
 * will connect by itself, with the secret that it was given; one that is dead goes the way of all
 * that die (ending.c), so what is in its journal counts. Nothing is started twice: a run keeps its
 * job in the state that the database gives it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/meeting.h"
#include "daemon/control/process.h"
#include "store/checkpoints.h"
#include "store/datasets.h"
#include "store/jobs.h"
#include "store/tasks.h"

#define TASKS_MOST 10000

static char *copy(const char *text)
{
    return strdup(text ? text : "");
}

static struct err *adopt_process(struct member *m, int64_t pid, int64_t start_time)
{
    m->process.pid = (pid_t)pid;
    m->process.start_time = (uint64_t)start_time;
    m->process.pidfd = process_open((pid_t)pid, (uint64_t)start_time);
    m->state = MEMBER_ALIVE;
    if (m->process.pidfd >= 0)
        return run_watch(m);
    if (errno != ESRCH) /* it may live: nothing may be started in its place */
        return err_errno(errno, "cannot tell whether the worker %lld still lives", (long long)pid);
    m->unseen = true;
    ending_begin(m, -1);
    return NULL;
}

static void tell(const struct run *r)
{
    run_log(r, NULL, LOG_LEVEL_INFO, "is taken over: %d of %d process%s alive", run_slots(r),
            r->world, r->world > 1 ? "es" : "");
}

static struct err *fill(struct store_tx *tx, struct run *r, const struct store_attempt *attempt)
{
    struct store_job job;
    struct store_dataset dataset = {0};
    TRY(store_job_get(tx, r->job, &job));
    if (job.dataset_id) {
        struct err *err = store_dataset_get(tx, job.dataset_id, &dataset);
        if (err && err_kind(err) != ERR_NOT_FOUND)
            return err;
        err_free(err);
    }
    if (attempt->checkpoint_id) {
        struct store_checkpoint checkpoint;
        struct err *err = store_checkpoint_get(tx, attempt->checkpoint_id, &checkpoint);
        if (err && err_kind(err) != ERR_NOT_FOUND)
            return err;
        if (!err && !(r->resume = strdup(checkpoint.directory)))
            return err_no_memory();
        err_free(err); /* it is kept no more: the ranks are long past it */
    }
    r->directory = copy(attempt->directory);
    r->spec = copy(job.spec_json);
    r->artifact = copy(dataset.path);
    return r->directory && r->spec && r->artifact ? meeting_load(r) : err_no_memory();
}

static struct err *adopt_attempt(struct control *c, struct store_tx *tx,
                                 const struct store_attempt *attempt)
{
    struct store_workers workers;
    TRY(store_workers_list(tx, attempt->job_id, attempt->number, &workers));
    struct run *r = run_create(c, false, attempt->job_id, attempt->number, (int)workers.count);
    if (!r)
        return err_no_memory();
    TRY(fill(tx, r, attempt));
    const char *failed = NULL;
    bool agreed = false; /* as in ending.c: a rank that has stopped does so with all others */
    for (int i = 0; i < r->world; i++) {
        const struct store_worker *w = &workers.items[i];
        struct member *m = &r->members[i];
        memcpy(m->secret_hash, w->secret_hash, sizeof m->secret_hash);
        m->committed = w->last_seq;
        if (i == 0)
            r->gpu = w->gpu;
        if (w->state == STORE_WORKER_ENDED)
            m->state = MEMBER_ENDED;
        else
            TRY(adopt_process(m, w->pid, w->start_time));
        bool stopped = w->exit_status && strcmp(w->exit_status, "stopped") == 0;
        agreed = agreed || stopped;
        if (w->exit_status && !stopped && strcmp(w->exit_status, "done") != 0)
            failed = w->reason ? w->reason : "a rank has ended";
    }
    tell(r);
    if (attempt->state == STORE_ATTEMPT_STOPPING)
        run_stop(r, attempt->reason ? attempt->reason : "it was told to stop before");
    else if (failed)
        run_stop(r, failed);
    else if (agreed)
        run_expect_end(r);
    ending_check(r);
    return NULL;
}

static struct err *adopt_task(struct control *c, const struct store_task *task)
{
    struct run *r = run_create(c, true, task->id, 0, 1);
    if (!r)
        return err_no_memory();
    r->directory = copy(task->directory);
    r->parameters = copy(task->parameters_json);
    if (!r->directory || !r->parameters)
        return err_no_memory();
    r->gpu = task->gpu;
    struct member *m = &r->members[0];
    memcpy(m->secret_hash, task->secret_hash, sizeof m->secret_hash);
    m->committed = task->last_seq;
    TRY(adopt_process(m, task->pid, task->start_time));
    tell(r);
    return NULL;
}

static struct err *adopt_all(struct control *c, struct store_tx *tx)
{
    struct store_attempts attempts;
    struct store_tasks tasks;
    struct store_task_filter filter = {.states = STORE_TASK_MASK(STORE_TASK_RUNNING)};
    struct store_page page = {.limit = TASKS_MOST};
    TRY(store_attempts_live(tx, &attempts));
    for (size_t i = 0; i < attempts.count; i++)
        TRY(adopt_attempt(c, tx, &attempts.items[i]));
    TRY(store_tasks_list(tx, &filter, &page, &tasks));
    for (size_t i = 0; i < tasks.count; i++)
        TRY(adopt_task(c, &tasks.items[i]));
    return NULL;
}

struct err *adopt_runs(struct control *c)
{
    struct store_tx *tx;
    TRY(store_read_begin(c->store, &tx));
    struct err *err = adopt_all(c, tx);
    store_read_end(tx);
    return err;
}
