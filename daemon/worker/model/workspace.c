#include "daemon/worker/model/workspace.h"

#include <stdlib.h>
#include <string.h>

struct cutter {
    struct arena *arena;
    enum dtype dtype;
    enum device device;
};

static struct tensor cut(struct cutter *c, enum dtype dtype, int64_t rows, int64_t columns)
{
    size_t bytes = (size_t)rows * (size_t)columns * dtype_size(dtype);
    return tensor_2d(arena_take(c->arena, bytes), dtype, c->device, rows, columns);
}

static struct tensor cut_1d(struct cutter *c, enum dtype dtype, int64_t n)
{
    return tensor_1d(arena_take(c->arena, (size_t)n * dtype_size(dtype)), dtype, c->device, n);
}

static void cut_activations(struct cutter *c, const struct model_config *m,
                            const struct plan_capacity *capacity, struct layer_activations *a)
{
    int64_t n = capacity->rows, q = m->heads * m->head_dim, kv = 2 * m->kv_heads * m->head_dim;
    a->input_normed = cut(c, c->dtype, n, m->hidden);
    a->input_rstd = cut_1d(c, DTYPE_F32, n);
    a->qkv = cut(c, c->dtype, n, q + kv);
    a->q_rstd = cut(c, DTYPE_F32, n, m->heads);
    a->k_rstd = cut(c, DTYPE_F32, n, m->kv_heads);
    a->q = cut(c, c->dtype, n, q);
    a->kv = cut(c, c->dtype, n, kv);
    a->remote_kv = cut(c, c->dtype, capacity->buffer_rows, kv);
    a->o = cut(c, c->dtype, n, q);
    a->lse = cut(c, DTYPE_F32, n, m->heads);
    a->mid = cut(c, c->dtype, n, m->hidden);
    a->mid_normed = cut(c, c->dtype, n, m->hidden);
    a->mid_rstd = cut_1d(c, DTYPE_F32, n);
    a->gate_up = cut(c, c->dtype, n, 2 * m->intermediate);
    a->product = cut(c, c->dtype, n, m->intermediate);
}

static void cut_scratch(struct cutter *c, const struct model_config *m,
                        const struct plan_capacity *capacity, bool training,
                        struct layer_scratch *s)
{
    int64_t n = capacity->rows, q = m->heads * m->head_dim, kv = 2 * m->kv_heads * m->head_dim;
    s->projected = cut(c, c->dtype, n, m->hidden);
    s->packed_kv = cut(c, c->dtype, capacity->send_rows, kv);
    if (!training)
        return;
    s->d_product = cut(c, c->dtype, n, m->intermediate);
    s->d_gate_up = cut(c, c->dtype, n, 2 * m->intermediate);
    s->d_normed = cut(c, c->dtype, n, m->hidden);
    s->d_o = cut(c, c->dtype, n, q);
    s->d_q = cut(c, DTYPE_F32, n, q);
    s->delta = cut(c, DTYPE_F32, n, m->heads);
    s->d_kv = cut(c, DTYPE_F32, n, kv);
    s->d_remote_kv = cut(c, DTYPE_F32, capacity->buffer_rows, kv);
    s->d_packed_kv =
        c->dtype == DTYPE_F32 ? s->packed_kv : cut(c, DTYPE_F32, capacity->send_rows, kv);
    s->d_qkv = cut(c, c->dtype, n, q + kv);
    s->reduce = cut(c, DTYPE_F32, capacity->buffer_rows, kv).data;
}

struct err *workspace_create(struct arena *arena, const struct model_config *model,
                             const struct plan_capacity *capacity, enum dtype dtype,
                             enum device device, bool training, bool keep_all,
                             struct workspace *out)
{
    struct cutter c = {arena, dtype, device};
    memset(out, 0, sizeof *out);
    out->capacity = *capacity;
    out->n_inputs = training ? model->layers + 1 : 2;
    out->n_activations = keep_all ? model->layers : 1;
    out->inputs = calloc((size_t)out->n_inputs, sizeof *out->inputs);
    out->activations = calloc((size_t)out->n_activations, sizeof *out->activations);
    if (!out->inputs || !out->activations) {
        workspace_free(out);
        return err_no_memory();
    }
    int64_t n = capacity->rows, m = capacity->loss_rows, h = model->hidden;
    for (int64_t i = 0; i < out->n_inputs; i++)
        out->inputs[i] = cut(&c, dtype, n, h);
    for (int64_t i = 0; i < out->n_activations; i++)
        cut_activations(&c, model, capacity, &out->activations[i]);
    cut_scratch(&c, model, capacity, training, &out->scratch);
    out->row_ids = cut_1d(&c, DTYPE_I32, n);
    out->row_positions = cut_1d(&c, DTYPE_I32, n);
    out->loss_rows = cut_1d(&c, DTYPE_I32, m);
    out->loss_labels = cut_1d(&c, DTYPE_I32, m);
    out->loss_weights = cut_1d(&c, DTYPE_F32, m);
    out->losses = cut_1d(&c, DTYPE_F32, m);
    out->loss_rstd = cut_1d(&c, DTYPE_F32, m);
    out->loss_hidden = cut(&c, dtype, m, h);
    out->loss_normed = cut(&c, dtype, m, h);
    if (training) {
        out->d_loss_hidden = cut(&c, dtype, m, h);
        out->d_loss_normed = cut(&c, dtype, m, h);
        out->d_residual = cut(&c, dtype, n, h);
    }
    int64_t logit_rows = plan_logit_rows(dtype_size(dtype));
    out->logits = cut(&c, dtype, m < logit_rows ? m : logit_rows, model->vocab);
    return NULL;
}

void workspace_free(struct workspace *w)
{
    free(w->inputs);
    free(w->activations);
    w->inputs = NULL;
    w->activations = NULL;
}

struct layer_activations workspace_activations(const struct workspace *w, int64_t layer,
                                               int64_t rows, int64_t remote_rows)
{
    struct layer_activations a = w->activations[w->n_activations > 1 ? layer : 0];
    struct tensor *by_rows[] = {&a.input_normed, &a.input_rstd, &a.qkv,      &a.q_rstd,
                                &a.k_rstd,       &a.q,          &a.kv,       &a.o,
                                &a.lse,          &a.mid,        &a.mid_rstd, &a.mid_normed,
                                &a.gate_up,      &a.product};
    for (size_t i = 0; i < sizeof by_rows / sizeof *by_rows; i++)
        *by_rows[i] = tensor_rows(*by_rows[i], 0, rows);
    a.remote_kv = tensor_rows(a.remote_kv, 0, remote_rows);
    return a;
}

struct layer_scratch workspace_scratch(const struct workspace *w, int64_t rows, int64_t remote_rows,
                                       int64_t send_rows)
{
    struct layer_scratch s = w->scratch;
    s.projected = tensor_rows(s.projected, 0, rows);
    s.packed_kv = tensor_rows(s.packed_kv, 0, send_rows);
    if (!s.d_q.data)
        return s;
    struct tensor *by_rows[] = {&s.d_product, &s.d_gate_up, &s.d_normed, &s.d_o,
                                &s.d_q,       &s.delta,     &s.d_kv,     &s.d_qkv};
    for (size_t i = 0; i < sizeof by_rows / sizeof *by_rows; i++)
        *by_rows[i] = tensor_rows(*by_rows[i], 0, rows);
    s.d_remote_kv = tensor_rows(s.d_remote_kv, 0, remote_rows);
    s.d_packed_kv = tensor_rows(s.d_packed_kv, 0, send_rows);
    return s;
}
