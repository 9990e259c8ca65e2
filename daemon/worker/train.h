/* A job's rank from the welcome to the last step: meets the others, makes the engine, and runs the
 * step loop. */
#ifndef WORKER_TRAIN_H
#define WORKER_TRAIN_H

#include <stdbool.h>

#include "daemon/base/err.h"
#include "daemon/worker/link/link.h"

/* *stopped: an order ended the run before its last step. */
struct err *train_run(struct link *link, bool *stopped);

#endif
