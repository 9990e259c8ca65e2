/* Starting a worker process so that it outlives this daemon. */
#ifndef CONTROL_LAUNCH_H
#define CONTROL_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/err.h"

struct launch {
    const char *program;   /* dllm-worker */
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
    int bootstrap; /* write end of the worker's descriptor 3 */
};

/* Blocks on the disk and in fork; any thread. The process waits for its bootstrap line: it does
 * nothing until launch_go(), and when `bootstrap` is closed without a line, or this daemon dies
 * before, it ends and leaves nothing behind. So its pid can be committed before it begins. */
struct err *launch_worker(const struct launch *launch, struct launched *out);
/* Writes the bootstrap and closes it. */
struct err *launch_go(struct launched *launched, const char *bootstrap_line);
/* Kills what was launched and has not begun; closes and reaps. */
void launch_abort(struct launched *launched);
/* Removes what an earlier process left under the same names (journal, exit file). */
struct err *launch_clean(const char *directory, const char *name);

#endif
