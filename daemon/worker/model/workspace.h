/* The memory of a decoder's pass: what a layer leaves for its backward, and scratch. Its size
 * follows from the plan's capacity, so all of it is taken before step 0. */
#ifndef WORKER_WORKSPACE_H
#define WORKER_WORKSPACE_H

#include "daemon/base/arena.h"
#include "daemon/plan/model.h"
#include "daemon/plan/plan.h"
#include "kernels/kernels.h"

/* n rows: the rank's. b rows: those of the exchanged buffer. H, H_kv, d, h, f as in the model.
 * Activations and their gradients are of one dtype; fp32 are statistics, and the gradients of q, k
 * and v on their way, which sum what several calls and ranks add. */
struct layer_activations {
    struct tensor input_normed, input_rstd; /* [n, h], [n] */
    struct tensor qkv;                      /* [n, (H + 2 H_kv) d] before head norms and RoPE */
    struct tensor q_rstd, k_rstd;           /* [n, H], [n, H_kv] */
    struct tensor q;                        /* [n, H d] */
    struct tensor kv;                       /* [n, 2 H_kv d]: keys | values */
    struct tensor remote_kv;                /* [b, 2 H_kv d]: as they came from the group */
    struct tensor o, lse;                   /* [n, H d], [n, H] */
    struct tensor mid;                      /* [n, h]: the residual stream behind attention */
    struct tensor mid_normed, mid_rstd;     /* [n, h], [n] */
    struct tensor gate_up, product;         /* [n, 2 f], [n, f] */
};

struct layer_scratch {
    struct tensor projected; /* [n, h]; forward and backward */
    struct tensor packed_kv; /* [send rows, 2 H_kv d] */
    /* backward only */
    struct tensor d_product, d_gate_up, d_normed; /* [n, f], [n, 2 f], [n, h] */
    struct tensor d_o, d_q, delta;                /* [n, H d], [n, H d] fp32, [n, H] fp32 */
    struct tensor d_kv, d_remote_kv;              /* [n, 2 H_kv d], [b, 2 H_kv d]; fp32 */
    struct tensor d_packed_kv;                    /* [send rows, 2 H_kv d] fp32 */
    struct tensor d_qkv;                          /* [n, (H + 2 H_kv) d] */
    float *reduce;                                /* [b, 2 H_kv d]: a reduce-scatter's scratch */
};

struct workspace {
    struct plan_capacity capacity;
    int64_t n_inputs; /* saved layer inputs: layers + 1, or 2 in turn for a forward alone */
    struct tensor *inputs;
    int64_t n_activations; /* one, or one a layer where nothing is recomputed */
    struct layer_activations *activations;
    struct layer_scratch scratch;
    struct tensor row_ids, row_positions;                   /* [n] i32 */
    struct tensor loss_rows, loss_labels;                   /* [m] i32 */
    struct tensor loss_weights, losses, loss_rstd;          /* [m] fp32 */
    struct tensor loss_hidden, loss_normed;                 /* [m, h] */
    struct tensor d_loss_hidden, d_loss_normed, d_residual; /* [m, h], [m, h], [n, h] */
    struct tensor logits;                                   /* [plan_logit_rows, V] */
};

/* training: memory for a backward too. keep_all: activations of every layer are kept. `arrays` of
 * the workspace are allocated; tensors are cut from the arena. May be called first with a measuring
 * arena and then with a real one. */
struct err *workspace_create(struct arena *arena, const struct model_config *model,
                             const struct plan_capacity *capacity, enum dtype dtype,
                             enum device device, bool training, bool keep_all,
                             struct workspace *out);
void workspace_free(struct workspace *w);

/* The activations of `layer`, cut to the rows of this pass. */
struct layer_activations workspace_activations(const struct workspace *w, int64_t layer,
                                               int64_t rows, int64_t remote_rows);
struct layer_scratch workspace_scratch(const struct workspace *w, int64_t rows, int64_t remote_rows,
                                       int64_t send_rows);

#endif
