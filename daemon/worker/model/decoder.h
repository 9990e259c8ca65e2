/* A decoder over a rank's rows of one micro-batch: embedding, layers, final norm, loss, and the way
 * back. The rows may be of any streams and views; the plan says what each sees.
 */
#ifndef WORKER_DECODER_H
#define WORKER_DECODER_H

#include "daemon/base/err.h"
#include "daemon/plan/plan.h"
#include "daemon/plan/spec.h"
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/model/parameters.h"
#include "kernels/kernels.h"

struct decoder;

/* Rows of this rank that carry loss. Gradients are of sum of weight x cross-entropy. */
struct decoder_loss {
    int64_t n;
    const int32_t *rows;   /* local */
    const int32_t *labels; /* token ids */
    const float *weights;
};

/* training: a backward will be asked for. `weights` (of dtype, as activations) and `gradients`
 * (fp32; NULL without training) are flat buffers of `parameters` on the device; all pointers are
 * kept, none is owned. capacity bounds every layout that will come. */
struct err *decoder_create(const struct kernels *kernels, struct comm *group,
                           const struct parameters *parameters, enum dtype dtype, void *weights,
                           float *gradients, const struct plan_capacity *capacity,
                           enum recompute recompute, struct decoder **out);
void decoder_destroy(struct decoder *d);
size_t decoder_memory_bytes(const struct decoder *d);

/* One pass over a micro-batch. row_ids: token of each local row. *loss_sum += sum of weight x
 * cross-entropy over this rank's rows; losses (may be NULL) gets each row's cross-entropy.
 * backward: gradients += . */
struct err *decoder_pass(struct decoder *d, const struct plan_layout *layout,
                         const int32_t *row_ids, const struct decoder_loss *loss, bool backward,
                         double *loss_sum, float *losses);

struct decoder_times {
    double forward_s, backward_s, exchange_s; /* since creation */
};
struct decoder_times decoder_times(const struct decoder *d);

#endif
