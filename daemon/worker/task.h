/* A task (docs/worker-protocol.md): work that is not training, one process, one result. */
#ifndef WORKER_TASK_H
#define WORKER_TASK_H

#include <stdbool.h>

#include "daemon/base/err.h"
#include "daemon/worker/link/link.h"

/* *stopped: an order ended it before it was done. */
struct err *task_run(struct link *link, bool *stopped);

#endif
