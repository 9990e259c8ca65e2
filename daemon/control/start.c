/* Beginning a run, in steps, each of which may be the last that this daemon takes:
 *
 * 0. The pool: what lies where the run's files will be is of an earlier life, whose database was
 *    removed or replaced by a backup. It is set aside, so that none of it is taken for the run's
 *    own. Before there are rows: whoever finds rows finds only files of that run.
 * 1. One transaction: the job (task) moves on, and there is a row for each process, with the hash
 *    of its secret. A daemon that comes back finds rows without a pid: nothing was started.
 * 2. The pool: directories, logs, processes. They wait for their bootstrap; if it never comes they
 *    end (launch.h).
 * 3. One transaction: pids and start times.
 * 4. The bootstrap lines are written, and the processes begin.
 */
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/directory.h"
#include "store/checkpoints.h"
#include "store/jobs.h"
#include "store/tasks.h"

#define WAITING                                                                                    \
    (STORE_JOB_MASK(STORE_JOB_QUEUED) | STORE_JOB_MASK(STORE_JOB_PREPARING) |                      \
     STORE_JOB_MASK(STORE_JOB_RESTARTING))

static void free_request(struct start_request *q)
{
    free(q->spec);
    free(q->artifact);
    free(q->parameters);
    free(q->resume);
    free(q);
}

/* ---- 0: room ---- */

static char *directory_of(const struct control *c, bool is_task, int64_t id, int64_t attempt)
{
    char *path = NULL;
    int n = is_task ? asprintf(&path, "%s/tasks/%lld", c->config->state_directory, (long long)id)
                    : asprintf(&path, "%s/jobs/%lld/attempts/%lld", c->config->state_directory,
                               (long long)id, (long long)attempt);
    return n < 0 ? NULL : path;
}

/* A job's first attempt takes the whole of jobs/<id>, with the checkpoints; a later one only what
 * is its own. A task that is started again goes on with its log; launch_clean() does the rest. */
static struct err *make_room(void *arg)
{
    const struct start_request *q = arg;
    if (q->is_task && q->before)
        return NULL;
    char *path = NULL;
    if (q->is_task || q->before)
        path = directory_of(q->control, q->is_task, q->id, q->before + 1);
    else if (asprintf(&path, "%s/jobs/%lld", q->control->config->state_directory,
                      (long long)q->id) < 0)
        path = NULL;
    struct err *err = path ? directory_set_aside(path) : err_no_memory();
    free(path);
    return err;
}

/* ---- 1: rows ---- */

static struct err *write_attempt(struct store_tx *tx, const struct start_request *q,
                                 const char *directory, double now_s)
{
    const struct control *c = q->control;
    TRY(store_attempt_set_directory(tx, q->id, q->attempt, directory));
    TRY(store_attempt_set_lease(tx, q->id, q->attempt, now_s + c->config->lease_s));
    for (int rank = 0; rank < q->world; rank++) {
        struct store_worker worker = {
            .job_id = q->id,
            .attempt = q->attempt,
            .rank = rank,
            .node_id = c->node_id,
            .gpu = q->gpu < 0 ? -1 : q->gpu + rank,
        };
        memcpy(worker.secret_hash, q->run->members[rank].secret_hash, sizeof worker.secret_hash);
        TRY(store_worker_insert(tx, &worker, now_s));
    }
    return NULL;
}

/* The newest one there is; *id 0: none, it begins at the beginning. */
static struct err *find_checkpoint(struct store_tx *tx, struct start_request *q, int64_t *id)
{
    struct store_checkpoint checkpoint;
    struct err *err = store_checkpoint_newest(tx, q->id, &checkpoint);
    *id = 0;
    free(q->resume); /* write_rows may run twice */
    q->resume = NULL;
    if (err && err_kind(err) == ERR_NOT_FOUND) {
        err_free(err);
        return NULL;
    }
    TRY(err);
    *id = checkpoint.id;
    q->resume = strdup(checkpoint.directory);
    return q->resume ? NULL : err_no_memory();
}

static struct err *write_rows(struct store_tx *tx, void *arg)
{
    struct start_request *q = arg;
    const struct control *c = q->control;
    double now_s = store_now();
    struct err *err;
    if (q->is_task) {
        char *directory = directory_of(c, true, q->id, 0);
        err = directory ? store_task_start(tx, q->id, c->node_id, q->gpu,
                                           q->run->members[0].secret_hash, directory, now_s)
                        : err_no_memory();
        free(directory);
        return err;
    }
    struct store_attempt attempt;
    struct store_job job;
    TRY(store_job_get(tx, q->id, &job));
    if (job.intent != STORE_INTENT_RUN)
        return err_new(ERR_CONFLICT, "job %lld is no longer asked to run", (long long)q->id);
    int64_t checkpoint;
    TRY(find_checkpoint(tx, q, &checkpoint));
    TRY(store_attempt_begin(tx, q->id, checkpoint, now_s, &attempt));
    if (attempt.number != q->before + 1)
        return err_new(ERR_CONFLICT, "attempt %lld of job %lld has begun", (long long)q->before + 1,
                       (long long)q->id);
    TRY(store_job_transition(tx, q->id, WAITING, STORE_JOB_STARTING, NULL, now_s));
    q->attempt = attempt.number;
    char *directory = directory_of(c, false, q->id, q->attempt);
    err = directory ? write_attempt(tx, q, directory, now_s) : err_no_memory();
    free(directory);
    return err;
}

/* ---- 2: processes ---- */

static int64_t threads_of(const struct run *r)
{
    int64_t threads = r->control->config->slots / r->world;
    return r->is_task || threads < 1 ? 1 : threads;
}

static struct err *launch_all(void *arg)
{
    struct run *r = arg;
    for (int i = 0; i < r->world; i++) {
        struct member *m = &r->members[i];
        char instance[LAUNCH_INSTANCE_BYTES];
        run_instance(m, instance);
        struct launch launch = {
            .launcher = r->control->launcher,
            .instance = instance,
            .program = r->control->config->worker,
            .directory = r->directory,
            .name = m->name,
            .is_task = r->is_task,
            .threads = threads_of(r),
            .gpu = r->gpu < 0 ? -1 : r->gpu + i,
        };
        if (r->is_task)
            TRY(launch_clean(r->directory, m->name));
        TRY(launch_worker(&launch, &m->process));
    }
    return NULL;
}

/* ---- 3: pids ---- */

static struct err *write_pids(struct store_tx *tx, void *arg)
{
    const struct run *r = arg;
    for (int i = 0; i < r->world; i++) {
        const struct launched *p = &r->members[i].process;
        if (r->is_task)
            TRY(store_task_launched(tx, r->task, p->pid, (int64_t)p->start_time));
        else
            TRY(store_worker_launched(tx, r->job, r->attempt, i, p->pid, (int64_t)p->start_time));
    }
    return NULL;
}

/* ---- 4: go ---- */

static char *bootstrap_of(const struct member *m)
{
    const struct run *r = m->run;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddNumberToObject(json, "v", 1);
    cJSON_AddStringToObject(json, "socket", r->control->socket_path);
    cJSON_AddStringToObject(json, "directory", r->directory);
    cJSON_AddStringToObject(json, "secret", m->secret);
    if (r->is_task) {
        cJSON_AddNumberToObject(json, "task", (double)r->task);
    } else {
        cJSON_AddNumberToObject(json, "job", (double)r->job);
        cJSON_AddNumberToObject(json, "attempt", (double)r->attempt);
        cJSON_AddNumberToObject(json, "rank", m->rank);
    }
    char *text = json_print(json), *line = NULL;
    cJSON_Delete(json);
    if (text && asprintf(&line, "%s\n", text) < 0)
        line = NULL;
    free(text);
    return line;
}

/* Before a process has begun: kills it if there is one; then the member ends as if it had reported
 * the error itself (ending.c). */
static void fail_member(struct member *m, const struct err *err)
{
    launch_abort(&m->process);
    m->report = REPORT_ERROR;
    snprintf(m->error_kind, sizeof m->error_kind, "%s", err_kind_name(err_kind(err)));
    snprintf(m->error_reason, sizeof m->error_reason, "%s", err_message(err));
    ending_begin(m, 0);
}

/* Takes err. */
static void fail_start(struct run *r, struct err *err)
{
    run_log(r, NULL, LOG_LEVEL_ERROR, "cannot be started: %s", err_message(err));
    for (int i = 0; i < r->world; i++)
        fail_member(&r->members[i], err);
    err_free(err);
}

static void go(struct member *m)
{
    char *line = bootstrap_of(m);
    struct err *err = line ? run_watch(m) : err_no_memory();
    m->state = MEMBER_ALIVE;
    m->run->control->workers_started++;
    if (err) {
        run_log(m->run, m, LOG_LEVEL_ERROR, "cannot be started: %s", err_message(err));
        fail_member(m, err);
    } else if ((err = launch_go(&m->process, line))) {
        run_log(m->run, m, LOG_LEVEL_WARNING, "cannot be told who it is: %s", err_message(err));
        run_stop(m->run, err_message(err)); /* it ends by itself: nobody told it */
    }
    sodium_memzero(m->secret, sizeof m->secret);
    err_free(err);
    free(line);
}

/* ---- The chain ---- */

static void after_pids(void *arg, struct err *err)
{
    struct run *r = arg;
    r->pending--;
    if (err) {
        fail_start(r, err);
        return;
    }
    for (int i = 0; i < r->world; i++)
        go(&r->members[i]);
    ending_check(r);
}

static void after_launch(void *arg, struct err *err)
{
    struct run *r = arg;
    r->pending--;
    if (err) {
        fail_start(r, err);
        return;
    }
    r->pending++;
    async_write(r->control->async, &r->launch_item, write_pids, r, after_pids);
}

static void after_rows(void *arg, struct err *err)
{
    struct start_request *q = arg;
    struct control *c = q->control;
    struct run *r = q->run;
    r->pending--;
    r->attempt = q->attempt;
    r->resume = q->resume;
    q->resume = NULL;
    r->directory = directory_of(c, q->is_task, q->id, q->attempt);
    void (*done)(struct control *, bool) = q->done;
    if (!err && !r->directory)
        err = err_no_memory();
    /* A conflict of the rows: it was cancelled meanwhile. */
    bool later = err && (q->item.refused || err_kind(err) != ERR_CONFLICT);
    free_request(q);
    if (err) {
        if (later)
            log_warning("a start is put off: %s", err_message(err));
        err_free(err);
        run_drop(r);
    } else {
        run_log(r, NULL, LOG_LEVEL_INFO, "starts %d process%s", r->world, r->world > 1 ? "es" : "");
        r->pending++;
        async_work(c->async, &r->launch_item, launch_all, r, after_launch);
    }
    done(c, later);
}

static void after_room(void *arg, struct err *err)
{
    struct start_request *q = arg;
    if (err)
        after_rows(q, err);
    else
        async_write(q->control->async, &q->item, write_rows, q, after_rows);
}

void start_run(struct start_request *q)
{
    struct control *c = q->control;
    struct run *r = run_create(c, q->is_task, q->id, 0, q->world);
    if (!r) {
        void (*done)(struct control *, bool) = q->done;
        free_request(q);
        done(c, true);
        return;
    }
    q->run = r;
    r->gpu = q->gpu;
    r->spec = q->spec;
    r->artifact = q->artifact;
    r->parameters = q->parameters;
    q->spec = q->artifact = q->parameters = NULL;
    for (int i = 0; i < r->world; i++)
        secret_make(c->key, r->members[i].secret, r->members[i].secret_hash);
    r->pending++;
    async_work(c->async, &q->item, make_room, q, after_room);
}
