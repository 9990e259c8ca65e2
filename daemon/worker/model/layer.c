#include "daemon/worker/model/layer.h"

#include <math.h>

static struct tensor keys_of(const struct model_config *m, struct tensor kv)
{
    int64_t width = m->kv_heads * m->head_dim;
    return tensor_heads(tensor_columns(kv, 0, width), m->kv_heads);
}

static struct tensor values_of(const struct model_config *m, struct tensor kv)
{
    int64_t width = m->kv_heads * m->head_dim;
    return tensor_heads(tensor_columns(kv, width, width), m->kv_heads);
}

static struct attention attention_of(const struct layer_pass *pass,
                                     const struct layer_activations *a)
{
    const struct model_config *m = pass->model;
    return (struct attention){
        .q = tensor_heads(a->q, m->heads),
        .o = tensor_heads(a->o, m->heads),
        .lse = a->lse,
        .scale = (float)(rope_score_scale(&m->rope) / sqrt((double)m->head_dim)),
    };
}

/* Puts the kind's pieces that lie in this rank's own keys (local), or in the exchanged buffer, into
 * the call. Returns how many there are. */
static int take_pieces(const struct layer_pass *pass, const struct plan_kind *kind, bool local,
                       struct tensor kv, struct tensor d_kv, struct attention *call)
{
    const struct model_config *m = pass->model;
    call->n_pieces = 0;
    for (int i = 0; i < ATTENTION_PIECES; i++) {
        if (kind->pieces[i].local != local || !kind->pieces[i].n_chunks)
            continue;
        struct attention_piece *piece = &call->pieces[call->n_pieces++];
        *piece = (struct attention_piece){
            .k = keys_of(m, kv),
            .v = values_of(m, kv),
            .chunks = kind->pieces[i].chunks,
            .n_chunks = kind->pieces[i].n_chunks,
            .intervals = kind->pieces[i].intervals,
        };
        if (d_kv.data) {
            piece->dk = keys_of(m, d_kv);
            piece->dv = values_of(m, d_kv);
        }
    }
    return call->n_pieces;
}

static void attend(const struct layer_pass *pass, const struct plan_kind *kind,
                   struct layer_activations *a, struct layer_scratch *s)
{
    const struct kernels *k = pass->kernels;
    struct attention call = attention_of(pass, a);
    exchange_forward_begin(pass->exchange, kind, a->kv, s->packed_kv, a->remote_kv);
    int local = take_pieces(pass, kind, true, a->kv, (struct tensor){0}, &call);
    if (local)
        k->attention_forward(pass->queue, &call);
    exchange_forward_end(pass->exchange, kind);
    int remote = take_pieces(pass, kind, false, a->remote_kv, (struct tensor){0}, &call);
    call.merge = local > 0;
    if (remote || !local)
        k->attention_forward(pass->queue, &call);
}

/* Gradients of q, and of this rank's own keys and values from every rank that saw them. */
static void attend_backward(const struct layer_pass *pass, const struct plan_kind *kind,
                            struct layer_activations *a, struct layer_scratch *s)
{
    const struct kernels *k = pass->kernels;
    struct kernel_queue *q = pass->queue;
    struct attention call = attention_of(pass, a);
    call.d_o = tensor_heads(s->d_o, pass->model->heads);
    call.dq = tensor_heads(s->d_q, pass->model->heads);
    call.delta = s->delta;
    struct tensor *zeroed[] = {&s->d_q, &s->d_kv, &s->d_remote_kv};
    for (size_t i = 0; i < sizeof zeroed / sizeof *zeroed; i++)
        k->fill_zero(q, zeroed[i]->data,
                     (size_t)tensor_elements(*zeroed[i]) * dtype_size(zeroed[i]->dtype));
    k->attention_delta(q, &call);
    if (take_pieces(pass, kind, false, a->remote_kv, s->d_remote_kv, &call))
        k->attention_backward(q, &call);
    exchange_backward_begin(pass->exchange, kind, s->d_remote_kv, s->d_packed_kv, s->reduce);
    if (take_pieces(pass, kind, true, a->kv, s->d_kv, &call))
        k->attention_backward(q, &call);
    exchange_backward_end(pass->exchange, kind, s->d_kv, s->d_remote_kv, s->d_packed_kv);
}

/* The three parts of [n, (H + 2 H_kv) d], as heads. */
struct qkv_heads {
    struct tensor q, k, v;
};

static struct qkv_heads split(const struct model_config *m, struct tensor qkv)
{
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    return (struct qkv_heads){
        .q = tensor_heads(tensor_columns(qkv, 0, q), m->heads),
        .k = tensor_heads(tensor_columns(qkv, q, kv), m->kv_heads),
        .v = tensor_heads(tensor_columns(qkv, q + kv, kv), m->kv_heads),
    };
}

void layer_forward(const struct layer_pass *pass, const struct plan_kind *kind,
                   const struct layer_tensors *w, struct layer_activations *a,
                   struct layer_scratch *s, struct tensor x, struct tensor y)
{
    const struct kernels *k = pass->kernels;
    const struct model_config *m = pass->model;
    struct kernel_queue *q = pass->queue;

    k->rmsnorm_forward(q, a->input_normed, a->input_rstd, x, w->input_norm, m->rms_norm_eps);
    k->matmul(q, a->qkv, a->input_normed, false, w->qkv, true, 1.0f, 0.0f);
    if (w->qkv_bias.data)
        k->bias_forward(q, a->qkv, w->qkv_bias);
    struct qkv_heads heads = split(m, a->qkv);
    kernel_norm_rope(k, q, tensor_heads(a->q, m->heads), a->q_rstd, heads.q, w->q_norm,
                     m->rms_norm_eps, pass->positions, pass->inv_freq);
    kernel_norm_rope(k, q, keys_of(m, a->kv), a->k_rstd, heads.k, w->k_norm, m->rms_norm_eps,
                     pass->positions, pass->inv_freq);
    k->copy(q, values_of(m, a->kv), heads.v);

    attend(pass, kind, a, s);

    k->matmul(q, s->projected, a->o, false, w->o, true, 1.0f, 0.0f);
    if (w->o_bias.data)
        k->bias_forward(q, s->projected, w->o_bias);
    kernel_add_rmsnorm(k, q, a->mid, a->mid_normed, a->mid_rstd, x, s->projected, w->post_norm,
                       m->rms_norm_eps);
    k->matmul(q, a->gate_up, a->mid_normed, false, w->gate_up, true, 1.0f, 0.0f);
    k->swiglu_forward(q, a->product, tensor_columns(a->gate_up, 0, m->intermediate),
                      tensor_columns(a->gate_up, m->intermediate, m->intermediate));
    if (!y.data)
        return;
    k->copy(q, y, a->mid);
    k->matmul(q, y, a->product, false, w->down, true, 1.0f, 1.0f);
}

void layer_backward(const struct layer_pass *pass, const struct plan_kind *kind,
                    const struct layer_tensors *w, const struct layer_tensors *dw,
                    struct layer_activations *a, struct layer_scratch *s, struct tensor x,
                    struct tensor dy)
{
    const struct kernels *k = pass->kernels;
    const struct model_config *m = pass->model;
    struct kernel_queue *q = pass->queue;

    k->matmul(q, dw->down, dy, true, a->product, false, 1.0f, 1.0f);
    k->matmul(q, s->d_product, dy, false, w->down, false, 1.0f, 0.0f);
    k->swiglu_backward(q, tensor_columns(s->d_gate_up, 0, m->intermediate),
                       tensor_columns(s->d_gate_up, m->intermediate, m->intermediate), s->d_product,
                       tensor_columns(a->gate_up, 0, m->intermediate),
                       tensor_columns(a->gate_up, m->intermediate, m->intermediate));
    k->matmul(q, dw->gate_up, s->d_gate_up, true, a->mid_normed, false, 1.0f, 1.0f);
    k->matmul(q, s->d_normed, s->d_gate_up, false, w->gate_up, false, 1.0f, 0.0f);
    k->rmsnorm_backward(q, dy, dw->post_norm, s->d_normed, a->mid, w->post_norm, a->mid_rstd);

    k->matmul(q, dw->o, dy, true, a->o, false, 1.0f, 1.0f);
    if (dw->o_bias.data)
        k->bias_backward(q, dw->o_bias, dy);
    k->matmul(q, s->d_o, dy, false, w->o, false, 1.0f, 0.0f);

    attend_backward(pass, kind, a, s);

    struct qkv_heads heads = split(m, a->qkv), d_heads = split(m, s->d_qkv);
    struct tensor d_q = tensor_heads(s->d_q, m->heads), d_k = keys_of(m, s->d_kv);
    k->rope(q, d_q, pass->positions, pass->inv_freq, true);
    k->rope(q, d_k, pass->positions, pass->inv_freq, true);
    if (w->q_norm.data) {
        k->fill_zero(q, s->d_qkv.data,
                     (size_t)tensor_elements(s->d_qkv) * dtype_size(s->d_qkv.dtype));
        k->rmsnorm_backward(q, d_heads.q, dw->q_norm, d_q, heads.q, w->q_norm, a->q_rstd);
        k->rmsnorm_backward(q, d_heads.k, dw->k_norm, d_k, heads.k, w->k_norm, a->k_rstd);
    } else {
        k->copy(q, d_heads.q, d_q);
        k->copy(q, d_heads.k, d_k);
    }
    k->copy(q, d_heads.v, values_of(m, s->d_kv));
    if (dw->qkv_bias.data)
        k->bias_backward(q, dw->qkv_bias, s->d_qkv);
    k->matmul(q, dw->qkv, s->d_qkv, true, a->input_normed, false, 1.0f, 1.0f);
    k->matmul(q, s->d_normed, s->d_qkv, false, w->qkv, false, 1.0f, 0.0f);
    k->rmsnorm_backward(q, dy, dw->input_norm, s->d_normed, x, w->input_norm, a->input_rstd);
}
