/* One rank's writer of checkpoints. Training goes on while it writes: the step loop copies its
 * state into memory that was taken before step 0, and a thread of the writer brings it to disk
 * beside the other ranks' (docs/checkpoints.md). It needs neither the daemon nor a collective.
 *
 * All ranks must begin the same checkpoints in the same order. Whether a rank is idle depends on
 * its disk, so they agree first: each adds "not idle" to the sums of a step, and a checkpoint is
 * begun behind the first step where that is zero for all.
 *
 * Calls come from one thread, the step loop's.
 */
#ifndef CHECKPOINT_WRITER_H
#define CHECKPOINT_WRITER_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/worker/model/parameters.h"
#include "kernels/kernels.h"
#include "store/checkpoint_manifest.h"

struct checkpoint_writer;

struct checkpoint_options {
    const struct kernels *kernels; /* whose host memory copies fastest; kept, not owned */
    const char *directory;         /* of the job's checkpoints; its parent exists */
    /* All but the step's: step, optimizer_step, data_position. What it points to is copied. */
    struct checkpoint_facts facts;
    int rank;
    const struct parameters *parameters; /* kept, not owned */
    int64_t begin, count;                /* of the flat buffers, as engine_range gives them */
    double patience_s; /* how long a rank that is done waits for the others' shards */
};

/* Makes the directory where it is missing, takes all memory, starts the thread. */
struct err *checkpoint_writer_create(const struct checkpoint_options *options,
                                     struct checkpoint_writer **out);
/* A shard that is being written is finished first, so that the other ranks can commit it; they are
 * not waited for. NULL is fine. */
void checkpoint_writer_destroy(struct checkpoint_writer *w);
size_t checkpoint_writer_memory_bytes(const struct checkpoint_writer *w);

enum checkpoint_phase { CHECKPOINT_IDLE, CHECKPOINT_WRITING, CHECKPOINT_DONE, CHECKPOINT_FAILED };

struct checkpoint_status {
    enum checkpoint_phase phase;
    int64_t step;      /* but for CHECKPOINT_IDLE */
    double elapsed_s;  /* likewise: since checkpoint_begin */
    char *manifest;    /* CHECKPOINT_DONE: absolute or as the directory; the caller's, free() */
    struct err *error; /* CHECKPOINT_FAILED: the caller's */
};

/* CHECKPOINT_DONE and CHECKPOINT_FAILED are told once, then the writer is idle. DONE on any rank
 * means that the checkpoint is complete, committed and synced. It may be one that an older attempt
 * of the job made of the same step. */
void checkpoint_poll(struct checkpoint_writer *w, struct checkpoint_status *out);
/* Likewise, but waits up to timeout_s for the end of CHECKPOINT_WRITING. */
void checkpoint_wait(struct checkpoint_writer *w, double timeout_s, struct checkpoint_status *out);

/* Host memory [count] each, for engine_save_state before checkpoint_begin; at any other time that
 * the writer is idle it is free to be used, e.g. to load a checkpoint. NULL unless idle. */
struct checkpoint_snapshot {
    float *weights, *m, *v;
};
const struct checkpoint_snapshot *checkpoint_snapshot(struct checkpoint_writer *w);

/* Writes what is in the snapshot; returns at once. ERR_CONFLICT unless idle. */
struct err *checkpoint_begin(struct checkpoint_writer *w, int64_t step, int64_t optimizer_step,
                             int64_t data_position);

#endif
