/* When a run saves itself, and how it goes on from what it saved.
 *
 * A checkpoint is due every so many steps, at the last one, and when an order asks for it. All
 * ranks begin the same ones behind the same steps: what is wanted follows from the step and from
 * orders that all ranks saw in the step's sums, and it is begun behind the first step at which
 * every rank's writer was free. Training goes on while it is written.
 */
#ifndef WORKER_SAVING_H
#define WORKER_SAVING_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/plan/spec.h"
#include "daemon/worker/engine.h"
#include "daemon/worker/link/link.h"

struct saving;

struct saving_options {
    struct link *link;
    const struct job_spec *spec;
    const cJSON *spec_json; /* resolved; goes into each manifest */
    const struct kernels *kernels;
    struct engine *engine;
    const char *directory; /* of the job's checkpoints */
};

/* All pointers are kept, none is owned. */
struct err *saving_create(const struct saving_options *options, struct saving **out);
void saving_destroy(struct saving *s);
size_t saving_memory_bytes(const struct saving *s);

/* Loads the checkpoint at `path` into the engine; every rank calls it. *step: of the job, done;
 * *updates: of the weights by then. */
struct err *saving_resume(struct saving *s, const char *path, int64_t *step, int64_t *updates);

/* Tells the daemon what has become of the checkpoint under way. Once a step. */
struct err *saving_poll(struct saving *s);
/* This rank cannot begin one now: goes into the sums of a step. */
bool saving_is_busy(const struct saving *s);
/* One is wanted as soon as it can be begun. The same on all ranks. */
void saving_want(struct saving *s);
/* Behind `step`, when all ranks have agreed that nobody is busy: begins what is wanted. *begun: it
 * did. */
struct err *saving_begin(struct saving *s, int64_t step, int64_t updates, bool *begun);
/* Waits for the end of the one under way. Its failure is returned, not only told. */
struct err *saving_finish(struct saving *s);

#endif
