/* Starting a worker process so that it outlives this daemon.
 *
 * Two ways. The plain one (launch_plain.c) spawns it in a session of its own. The other
 * (launch_systemd.c) asks systemd for an instance of dllm-worker@.service, which has a user, a
 * cgroup and rules of its own, so that nothing that happens to dllmd.service reaches it. Either
 * way the process waits for its bootstrap line on a descriptor that this daemon holds the other
 * end of. */
#ifndef CONTROL_LAUNCH_H
#define CONTROL_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/base/err.h"

/* The way over systemd; a NULL launcher is the plain way. Immutable: any thread may use it. */
struct launcher;

enum launch_choice {
    LAUNCH_AUTO, /* systemd, if it started this daemon as a service and knows the unit */
    LAUNCH_PLAIN,
    LAUNCH_SYSTEMD,
};

/* *out is NULL for the plain way. LAUNCH_AUTO fails only where memory does; it says in the log why
 * a service starts its workers the plain way. When systemd is taken, files and directories that
 * this process makes from now on may be shared with its group (umask 0007), since the workers are
 * another user of the same group. At the start. */
struct err *launcher_open(enum launch_choice choice, const char *runtime_directory,
                          struct launcher **out);
void launcher_close(struct launcher *launcher);

#define LAUNCH_INSTANCE_BYTES 96

/* The name of a worker's instance: "job-1-attempt-2-rank-0", "task-7". */
void launch_instance(bool is_task, int64_t id, int64_t attempt, int rank,
                     char out[LAUNCH_INSTANCE_BYTES]);

struct launch {
    struct launcher *launcher;
    const char *instance;  /* for systemd */
    const char *program;   /* dllm-worker; systemd starts what its unit says */
    const char *directory; /* of the attempt or task; made if it is not there */
    const char *name;      /* "rank-0", "task": <name>.log takes standard output and error */
    bool is_task;
    int64_t threads; /* that it may use */
    int64_t gpu;     /* -1: none */
};

struct launched {
    pid_t pid;
    uint64_t start_time;
    int pidfd;
    int bootstrap; /* write end of the worker's bootstrap descriptor */
    bool is_unit;  /* not our child */
};

/* Blocks on the disk, in fork and on systemd; any thread. The process waits for its bootstrap line:
 * it does nothing until launch_go(), and when `bootstrap` is closed without a line, or this daemon
 * dies before, it ends and leaves nothing behind. So its pid can be committed before it begins. */
struct err *launch_worker(const struct launch *launch, struct launched *out);
/* Writes the bootstrap and closes it. */
struct err *launch_go(struct launched *launched, const char *bootstrap_line);
/* Ends what was launched and has not begun; closes, and reaps what is our child. */
void launch_abort(struct launched *launched);
/* Removes what an earlier process left under the same names (journal, exit file). */
struct err *launch_clean(const char *directory, const char *name);

/* Sends a signal to a process that was launched by this daemon or an earlier one: directly, or
 * through systemd (in the pool of `loop`) where it is another user's. Loop thread. */
void launch_signal(struct launcher *launcher, uv_loop_t *loop, int pidfd, const char *instance,
                   int signal);

/* After the death of a process: how systemd saw its unit end, as process_reap() says it; -1 also
 * where it was no unit, or never began. Waits until it has seen it, a few seconds at most. systemd
 * forgets the unit then. Any thread but the loop's. */
int launch_ended(struct launcher *launcher, const char *instance);

#endif
