/* One decoder layer over a rank's rows: RMSNorm, grouped-query interval attention over local and
 * exchanged keys, RMSNorm, SwiGLU. Everything but attention treats rows one by one.
 *
 * x [n, h] -> y [n, h]; the backward turns dy into dx in place and adds to the weights' gradients.
 */
#ifndef WORKER_LAYER_H
#define WORKER_LAYER_H

#include "daemon/plan/plan.h"
#include "daemon/worker/model/exchange.h"
#include "daemon/worker/model/parameters.h"
#include "daemon/worker/model/workspace.h"
#include "kernels/kernels.h"

/* What a pass shares between its layers. */
struct layer_pass {
    const struct kernels *kernels;
    struct kernel_queue *queue;
    const struct model_config *model;
    struct exchange *exchange;
    struct tensor positions; /* [n] i32 */
    struct tensor inv_freq;  /* [d / 2] fp32 */
};

/* y.data NULL: only the activations are wanted, for a backward. */
void layer_forward(const struct layer_pass *pass, const struct plan_kind *kind,
                   const struct layer_tensors *w, struct layer_activations *a,
                   struct layer_scratch *s, struct tensor x, struct tensor y);

/* `a` holds what layer_forward left for x. dy [n, h] becomes dx. */
void layer_backward(const struct layer_pass *pass, const struct plan_kind *kind,
                    const struct layer_tensors *w, const struct layer_tensors *dw,
                    struct layer_activations *a, struct layer_scratch *s, struct tensor x,
                    struct tensor dy);

#endif
