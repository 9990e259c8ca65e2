/* AdamW with its state sharded over all ranks of a job: stage 1 of ZeRO (Rajbhandari et al., 2020).
 *
 * The flat buffers of parameters.h are cut in `world` equal shards. A step sums the gradients into
 * each rank's shard (reduce-scatter), updates master weights and moments there, and gathers the
 * weights. Master weights are fp32: where the model computes with BF16 they are a shard beside it,
 * where it computes with F32 they are the weights themselves. Decoupled decay applies to tensors of
 * two dimensions (Loshchilov & Hutter, 2019).
 */
#ifndef WORKER_ZERO1_H
#define WORKER_ZERO1_H

#include "daemon/base/err.h"
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/model/parameters.h"
#include "kernels/kernels.h"

struct zero1;

/* Elements that the flat buffers need: parameters->count rounded up to a multiple of world. */
int64_t zero1_flat_count(const struct parameters *parameters, int world);

/* weights (of dtype: F32 or BF16) and gradients (fp32): flat device buffers of zero1_flat_count
 * elements, kept, not owned. */
struct err *zero1_create(const struct kernels *kernels, struct comm *world,
                         const struct parameters *parameters, void *weights, enum dtype dtype,
                         float *gradients, struct zero1 **out);
void zero1_destroy(struct zero1 *z);
size_t zero1_memory_bytes(const struct zero1 *z);

/* Sums the gradients over ranks into each rank's shard. The rest of the buffer is undefined. */
struct err *zero1_reduce(struct zero1 *z);
/* After zero1_reduce: the Euclidean norm of the summed gradient, the same on every rank. */
struct err *zero1_norm(struct zero1 *z, double *norm);
/* After zero1_reduce: one update (options->weight_decay for matrices alone), then the new weights
 * on every rank. */
struct err *zero1_update(struct zero1 *z, const struct adamw *options);

/* This rank's range [begin, begin + count) of the flat buffers, alignment gaps and the padding of
 * zero1_flat_count included. */
void zero1_range(const struct zero1 *z, int64_t *begin, int64_t *count);
/* The state of that range, in host memory [count] each: master weights and moments. Loading gathers
 * the weights, so every rank calls it; afterwards all is as it was when the state was saved. */
struct err *zero1_save(struct zero1 *z, float *weights, float *m, float *v);
struct err *zero1_load(struct zero1 *z, const float *weights, const float *m, const float *v);

/* The first weights: each rank writes its range of the master weights [count], on the device; then
 * all of them get all the weights. */
float *zero1_master(struct zero1 *z);
struct err *zero1_gather_weights(struct zero1 *z);

/* For tests and comparison: the summed gradients back in full on every rank, after zero1_reduce. */
struct err *zero1_gather_gradients(struct zero1 *z);

#endif
