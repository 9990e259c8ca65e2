/* The training engine of one rank: a decoder, an objective, an optimizer, and the group of ranks
 * that share each sequence. It knows nothing of jobs, files of a run or the daemon: train.c drives
 * it, and so do the golden program and the tests.
 *
 * A step is any number of engine_accumulate, one engine_finish_sums, then engine_update. How it is
 * cut into micro-batches and ranks never changes its value (docs/mathematics.md, "Objectives").
 */
#ifndef WORKER_ENGINE_H
#define WORKER_ENGINE_H

#include "daemon/base/err.h"
#include "daemon/base/file.h"
#include "daemon/plan/spec.h"
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/model/decoder.h"
#include "daemon/worker/model/parameters.h"
#include "daemon/worker/objective/batch.h"
#include "kernels/kernels.h"

struct engine;

struct engine_options {
    const struct kernels *kernels;
    struct comm *world; /* all ranks of the job; kept, not owned */
    struct comm *group; /* the ranks that share a sequence; may be world */
    const struct model_config *model;
    struct objective_spec objective;
    enum parallel_mode mode;
    enum recompute recompute;
    /* Of activations and of the weights to compute with: F32, or BF16 where the backend has it.
     * Master weights, moments and gradients of weights are fp32. */
    enum dtype dtype;
    /* Lengths that micro-batches will have, training's and evaluation's: they size all memory. */
    int64_t lengths[2];
};

struct err *engine_create(const struct engine_options *options, struct engine **out);
void engine_destroy(struct engine *e);
size_t engine_memory_bytes(const struct engine *e);
const struct parameters *engine_parameters(const struct engine *e);

/* Weights, the same on every rank: from the seed, or from a directory as Hugging Face lays it out,
 * whose files lie within the roots (NULL: anywhere). All ranks call it: each draws or reads its
 * range of them and sends it to the others. */
struct err *engine_init(struct engine *e, uint64_t seed);
struct err *engine_load(struct engine *e, const char *directory, const struct file_roots *roots);

/* What a checkpoint holds of this rank: its range [begin, begin + count) of the flat buffers of
 * weights, first and second moments, in host memory [count] each. Between steps. engine_load_state
 * leaves the whole weights on every rank: all ranks call it, in place of engine_init. */
void engine_range(const struct engine *e, int64_t *begin, int64_t *count);
struct err *engine_save_state(struct engine *e, float *weights, float *m, float *v);
struct err *engine_load_state(struct engine *e, const float *weights, const float *m,
                              const float *v);

/* What accumulates over a step. Before engine_finish_sums of this rank, afterwards of the job. */
struct engine_sums {
    double loss;        /* sum of weight x cross-entropy */
    double denominator; /* N */
};

void engine_zero_gradients(struct engine *e);
/* One micro-batch through the whole group: all its ranks call this with the same batch. objective:
 * the training's, or objective_for_evaluation. backward false: the loss alone. */
struct err *engine_accumulate(struct engine *e, const struct batch *batch,
                              const struct objective_spec *objective, bool backward,
                              struct engine_sums *sums);
/* Sums over all ranks; n more values (at most ENGINE_EXTRA) are summed with them in the same
 * collective, so that all ranks learn of an order at the same step. */
#define ENGINE_EXTRA 8
struct err *engine_finish_sums(struct engine *e, struct engine_sums *sums, double *extra, size_t n);

/* options: all but grad_scale. max_grad_norm 0: no clipping. *grad_norm: of gradient / N, before
 * clipping; one that is not finite is ERR_INVALID, and nothing is updated. N = 0 is the caller's to
 * see: this must not be called then. */
struct err *engine_update(struct engine *e, double denominator, const struct adamw *options,
                          float max_grad_norm, double *grad_norm);

/* For comparisons. Host copies [engine_parameters()->count]: weights, and the gradient summed over
 * all ranks and divided by the denominator (all ranks call it). Both use the gradients up. */
struct err *engine_weights(struct engine *e, float *host);
struct err *engine_gradients(struct engine *e, double denominator, float *host);

struct engine_times {
    double forward_s, backward_s, exchange_s, optimizer_s; /* since creation */
};
struct engine_times engine_times(const struct engine *e);

#endif
