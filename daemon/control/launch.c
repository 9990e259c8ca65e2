/* What both ways of launching share. */
#include "daemon/control/launch.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/file.h"
#include "daemon/base/log.h"
#include "daemon/control/directory.h"
#include "daemon/control/launch_ways.h"
#include "daemon/control/process.h"

void launch_instance(bool is_task, int64_t id, int64_t attempt, int rank,
                     char out[LAUNCH_INSTANCE_BYTES])
{
    if (is_task)
        snprintf(out, LAUNCH_INSTANCE_BYTES, "task-%lld", (long long)id);
    else
        snprintf(out, LAUNCH_INSTANCE_BYTES, "job-%lld-attempt-%lld-rank-%d", (long long)id,
                 (long long)attempt, rank);
}

bool launch_variables(const struct launch *l, char *out[LAUNCH_VARIABLES])
{
    static const char *const threads[] = {"OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"};
    memset(out, 0, LAUNCH_VARIABLES * sizeof *out);
    for (int i = 0; i < 2; i++)
        if (asprintf(&out[i], "%s=%lld", threads[i], (long long)l->threads) < 0)
            out[i] = NULL;
    int n = l->gpu < 0 ? asprintf(&out[2], "CUDA_VISIBLE_DEVICES=")
                       : asprintf(&out[2], "CUDA_VISIBLE_DEVICES=%lld", (long long)l->gpu);
    if (n < 0)
        out[2] = NULL;
    return out[0] && out[1] && out[2];
}

struct err *launch_worker(const struct launch *l, struct launched *out)
{
    *out = (struct launched){.pidfd = -1, .bootstrap = -1, .is_unit = l->launcher != NULL};
    TRY(directory_make(l->directory));
    TRY(l->launcher ? launch_unit(l, out) : launch_plain(l, out));
    out->start_time = process_start_time(out->pid);
    out->pidfd = process_open(out->pid, out->start_time);
    if (out->pidfd >= 0 && out->start_time)
        return NULL;
    struct err *err = err_errno(errno, "cannot watch the process %d", (int)out->pid);
    launch_abort(out);
    return err;
}

struct err *launch_go(struct launched *launched, const char *line)
{
    /* Less than a pipe or a socket holds: it never blocks. SIGPIPE is ignored by the daemon. */
    struct err *err =
        file_write_all(launched->bootstrap, "the worker's bootstrap", line, strlen(line));
    close(launched->bootstrap);
    launched->bootstrap = -1;
    return err;
}

void launch_abort(struct launched *launched)
{
    if (launched->bootstrap >= 0)
        close(launched->bootstrap); /* which alone ends it; a child is not waited for so long */
    if (launched->pidfd >= 0)
        close(launched->pidfd);
    if (launched->pid > 0 && !launched->is_unit) {
        /* Nobody else reaps our children, so the pid is still this one's. */
        kill(launched->pid, SIGKILL);
        waitpid(launched->pid, NULL, 0);
    }
    *launched = (struct launched){.pidfd = -1, .bootstrap = -1};
}

struct err *launch_clean(const char *directory, const char *name)
{
    static const char *const suffixes[] = {"journal", "exit"};
    for (size_t i = 0; i < 2; i++) {
        char *path = NULL;
        if (asprintf(&path, "%s/%s.%s", directory, name, suffixes[i]) < 0)
            return err_no_memory();
        int rc = unlink(path);
        struct err *err = rc != 0 && errno != ENOENT && errno != ENOTDIR
                              ? err_errno(errno, "cannot remove %s", path)
                              : NULL;
        free(path);
        TRY(err);
    }
    return NULL;
}

/* ---- Signals ---- */

struct unit_signal {
    uv_work_t request;
    char instance[LAUNCH_INSTANCE_BYTES];
    int signal;
};

static void send_signal(uv_work_t *request)
{
    struct unit_signal *s = request->data;
    struct err *err = launch_unit_signal(s->instance, s->signal);
    if (err)
        log_warning("%s", err_message(err));
    err_free(err);
}

static void after_signal(uv_work_t *request, int status)
{
    (void)status;
    free(request->data);
}

void launch_signal(struct launcher *launcher, uv_loop_t *loop, int pidfd, const char *instance,
                   int signal)
{
    if (process_signal(pidfd, signal) || errno == ESRCH)
        return;
    if (!launcher) {
        log_error("%s cannot be signalled: %s; it was started as a unit, but units are not "
                  "started any more (\"launcher\")",
                  instance, strerror(errno));
        return;
    }
    struct unit_signal *s = calloc(1, sizeof *s);
    if (!s) {
        log_error("%s cannot be signalled: memory is short", instance);
        return;
    }
    s->signal = signal;
    snprintf(s->instance, sizeof s->instance, "%s", instance);
    s->request.data = s;
    uv_queue_work(loop, &s->request, send_signal, after_signal);
}
