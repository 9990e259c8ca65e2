#include "daemon/worker/model/decoder.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/worker/model/exchange.h"
#include "daemon/worker/model/layer.h"
#include "daemon/worker/model/workspace.h"

struct decoder {
    const struct kernels *kernels;
    const struct parameters *parameters;
    const struct model_config *model;
    enum dtype dtype; /* of weights and activations */
    struct comm *group;
    struct kernel_queue *queue;
    struct exchange exchange;
    struct model_tensors weights, gradients;
    struct layer_tensors *layer_weights, *layer_gradients; /* [layers] */
    int *kind_of_layer;                                    /* [layers] */
    bool training;
    void *block; /* the workspace's memory */
    size_t block_bytes;
    struct workspace workspace;
    struct tensor inv_freq; /* [d / 2] */
    struct decoder_times times;
};

/* Takes the block in which the workspace and the RoPE frequencies lie. */
static struct err *take_memory(struct decoder *d, const struct plan_capacity *capacity,
                               enum recompute recompute)
{
    const struct kernels *k = d->kernels;
    bool keep_all = d->training && recompute == RECOMPUTE_NONE;
    int64_t half = d->model->head_dim / 2;
    struct arena arena = {0};
    for (int filling = 0; filling < 2; filling++) {
        if (filling) {
            d->block_bytes = arena.used_bytes;
            TRY(k->alloc(d->block_bytes, &d->block));
            k->fill_zero(d->queue, d->block, d->block_bytes);
            arena = (struct arena){.base = d->block};
            workspace_free(&d->workspace);
        }
        float *inv_freq = arena_take(&arena, (size_t)half * sizeof(float));
        d->inv_freq = tensor_1d(inv_freq, DTYPE_F32, k->device, half);
        TRY(workspace_create(&arena, d->model, capacity, d->dtype, k->device, d->training, keep_all,
                             &d->workspace));
    }
    return NULL;
}

static struct err *upload_frequencies(struct decoder *d)
{
    int64_t half = d->model->head_dim / 2;
    float *host = malloc((size_t)half * sizeof *host);
    if (!host)
        return err_no_memory();
    rope_frequencies(&d->model->rope, d->model->head_dim, host);
    d->kernels->upload(d->queue, d->inv_freq.data, host, (size_t)half * sizeof *host);
    struct err *e = d->kernels->queue_wait(d->queue);
    free(host);
    return e;
}

static struct err *init(struct decoder *d, void *weights, float *gradients,
                        const struct plan_capacity *capacity, enum recompute recompute)
{
    enum device device = d->kernels->device;
    size_t layers = (size_t)d->model->layers;
    d->layer_weights = calloc(layers, sizeof *d->layer_weights);
    d->layer_gradients = calloc(layers, sizeof *d->layer_gradients);
    d->kind_of_layer = calloc(layers, sizeof *d->kind_of_layer);
    if (!d->layer_weights || !d->layer_gradients || !d->kind_of_layer)
        return err_no_memory();
    int64_t windows[MODEL_MAX_LAYERS];
    plan_windows(d->model, windows, d->kind_of_layer);
    d->weights = parameters_model(d->parameters, weights, d->dtype, device);
    for (size_t i = 0; i < layers; i++)
        d->layer_weights[i] =
            parameters_layer(d->parameters, (int64_t)i, weights, d->dtype, device);
    if (d->training) {
        d->gradients = parameters_model(d->parameters, gradients, DTYPE_F32, device);
        for (size_t i = 0; i < layers; i++)
            d->layer_gradients[i] =
                parameters_layer(d->parameters, (int64_t)i, gradients, DTYPE_F32, device);
    }
    TRY(d->kernels->queue_create(&d->queue));
    TRY(exchange_create(d->kernels, d->group, d->queue, &d->exchange));
    TRY(take_memory(d, capacity, recompute));
    return upload_frequencies(d);
}

struct err *decoder_create(const struct kernels *kernels, struct comm *group,
                           const struct parameters *parameters, enum dtype dtype, void *weights,
                           float *gradients, const struct plan_capacity *capacity,
                           enum recompute recompute, struct decoder **out)
{
    struct decoder *d = calloc(1, sizeof *d);
    if (!d)
        return err_no_memory();
    d->kernels = kernels;
    d->group = group;
    d->parameters = parameters;
    d->dtype = dtype;
    d->model = &parameters->config;
    d->training = gradients != NULL;
    struct err *e = init(d, weights, gradients, capacity, recompute);
    if (e)
        decoder_destroy(d);
    else
        *out = d;
    return e;
}

void decoder_destroy(struct decoder *d)
{
    if (!d)
        return;
    workspace_free(&d->workspace);
    if (d->block)
        d->kernels->release(d->block);
    exchange_destroy(&d->exchange);
    if (d->queue)
        d->kernels->queue_destroy(d->queue);
    free(d->kind_of_layer);
    free(d->layer_gradients);
    free(d->layer_weights);
    free(d);
}

size_t decoder_memory_bytes(const struct decoder *d)
{
    return d->block_bytes;
}

struct decoder_times decoder_times(const struct decoder *d)
{
    struct decoder_times t = d->times;
    t.exchange_s = d->exchange.exposed_s;
    return t;
}

static const struct plan_kind *kind_of(const struct decoder *d, const struct plan_layout *layout,
                                       int64_t layer)
{
    return &layout->kinds[d->kind_of_layer[layer]];
}

static struct tensor input_of(const struct decoder *d, const struct plan_layout *layout,
                              int64_t layer)
{
    int64_t slot = d->training ? layer : layer % 2;
    return tensor_rows(d->workspace.inputs[slot], 0, layout->n_rows);
}

static struct layer_pass begin_pass(struct decoder *d, const struct plan_layout *layout)
{
    return (struct layer_pass){
        .kernels = d->kernels,
        .queue = d->queue,
        .model = d->model,
        .exchange = &d->exchange,
        .positions = tensor_rows(d->workspace.row_positions, 0, layout->n_rows),
        .inv_freq = d->inv_freq,
    };
}

/* Fills the layer's activations from its saved input, and y with its output. */
static void run_layer(struct decoder *d, const struct layer_pass *pass,
                      const struct plan_layout *layout, int64_t layer, struct tensor y)
{
    const struct plan_kind *kind = kind_of(d, layout, layer);
    struct layer_activations a =
        workspace_activations(&d->workspace, layer, layout->n_rows, kind->buffer_rows);
    struct layer_scratch s =
        workspace_scratch(&d->workspace, layout->n_rows, kind->buffer_rows, kind->send_rows);
    layer_forward(pass, kind, &d->layer_weights[layer], &a, &s, input_of(d, layout, layer), y);
}

/* Everything that a pass reads of the host's, before its first operation: a device may have to
 * catch up with its queue for an upload. */
static void upload_pass(struct decoder *d, const struct plan_layout *layout, const int32_t *row_ids,
                        const struct decoder_loss *loss)
{
    const struct kernels *k = d->kernels;
    const struct workspace *w = &d->workspace;
    size_t n = (size_t)layout->n_rows, m = (size_t)loss->n;
    k->upload(d->queue, w->row_ids.data, row_ids, n * sizeof *row_ids);
    k->upload(d->queue, w->row_positions.data, layout->rope, n * sizeof *layout->rope);
    k->upload(d->queue, w->loss_rows.data, loss->rows, m * sizeof *loss->rows);
    k->upload(d->queue, w->loss_labels.data, loss->labels, m * sizeof *loss->labels);
    k->upload(d->queue, w->loss_weights.data, loss->weights, m * sizeof *loss->weights);
}

static void forward(struct decoder *d, const struct plan_layout *layout)
{
    struct layer_pass pass = begin_pass(d, layout);
    struct tensor ids = tensor_rows(d->workspace.row_ids, 0, layout->n_rows);
    d->kernels->gather_rows(d->queue, input_of(d, layout, 0), d->weights.embedding, ids);
    for (int64_t layer = 0; layer < d->model->layers; layer++)
        run_layer(d, &pass, layout, layer, input_of(d, layout, layer + 1));
}

/* The loss of the m rows that carry it and, for a backward, d_residual. */
static void head(struct decoder *d, const struct plan_layout *layout, int64_t m, bool backward,
                 float *losses)
{
    const struct kernels *k = d->kernels;
    struct workspace *w = &d->workspace;
    struct tensor rows = tensor_rows(w->loss_rows, 0, m);
    struct tensor hidden = tensor_rows(w->loss_hidden, 0, m);
    struct tensor normed = tensor_rows(w->loss_normed, 0, m);
    struct tensor rstd = tensor_rows(w->loss_rstd, 0, m);
    struct projection_loss p = {
        .h = normed,
        .w = d->weights.lm_head,
        .labels = tensor_rows(w->loss_labels, 0, m),
        .loss = tensor_rows(w->losses, 0, m),
        .logits = w->logits,
    };
    k->gather_rows(d->queue, hidden, input_of(d, layout, d->model->layers), rows);
    k->rmsnorm_forward(d->queue, normed, rstd, hidden, d->weights.norm, d->model->rms_norm_eps);
    if (backward) {
        p.weights = tensor_rows(w->loss_weights, 0, m);
        p.dh = tensor_rows(w->d_loss_normed, 0, m);
        p.dw = d->gradients.lm_head;
    }
    kernel_projection_loss(k, d->queue, &p);
    k->download(d->queue, losses, p.loss.data, (size_t)m * sizeof *losses);
    if (!backward)
        return;
    struct tensor d_hidden = tensor_rows(w->d_loss_hidden, 0, m);
    struct tensor d_residual = tensor_rows(w->d_residual, 0, layout->n_rows);
    k->fill_zero(d->queue, d_hidden.data,
                 (size_t)tensor_elements(d_hidden) * dtype_size(d_hidden.dtype));
    k->rmsnorm_backward(d->queue, d_hidden, d->gradients.norm, p.dh, hidden, d->weights.norm, rstd);
    k->fill_zero(d->queue, d_residual.data,
                 (size_t)tensor_elements(d_residual) * dtype_size(d_residual.dtype));
    k->scatter_add_rows(d->queue, d_residual, d_hidden, rows);
}

static void backward(struct decoder *d, const struct plan_layout *layout)
{
    struct layer_pass pass = begin_pass(d, layout);
    struct tensor d_residual = tensor_rows(d->workspace.d_residual, 0, layout->n_rows);
    bool recompute = d->workspace.n_activations == 1;
    int64_t last = d->model->layers - 1;
    for (int64_t layer = last; layer >= 0; layer--) {
        if (recompute && layer < last) /* the last layer's are still there */
            run_layer(d, &pass, layout, layer, (struct tensor){0});
        const struct plan_kind *kind = kind_of(d, layout, layer);
        struct layer_activations a =
            workspace_activations(&d->workspace, layer, layout->n_rows, kind->buffer_rows);
        struct layer_scratch s =
            workspace_scratch(&d->workspace, layout->n_rows, kind->buffer_rows, kind->send_rows);
        layer_backward(&pass, kind, &d->layer_weights[layer], &d->layer_gradients[layer], &a, &s,
                       input_of(d, layout, layer), d_residual);
    }
    d->kernels->scatter_add_rows(d->queue, d->gradients.embedding, d_residual,
                                 tensor_rows(d->workspace.row_ids, 0, layout->n_rows));
}

/* Waits for the queues; the first failure of computation or of the group. */
static struct err *wait(struct decoder *d)
{
    struct err *e = d->kernels->queue_wait(d->queue);
    if (!e)
        e = d->kernels->queue_wait(d->exchange.wire);
    if (!e)
        e = comm_failure(d->group);
    return e;
}

struct err *decoder_pass(struct decoder *d, const struct plan_layout *layout,
                         const int32_t *row_ids, const struct decoder_loss *loss,
                         bool with_backward, double *loss_sum, float *losses)
{
    assert(layout->n_rows <= d->workspace.capacity.rows);
    assert(loss->n <= d->workspace.capacity.loss_rows);
    assert(!with_backward || d->training);
    float *own = NULL;
    if (!losses) {
        own = losses = malloc((size_t)(loss->n + 1) * sizeof *losses);
        if (!own)
            return err_no_memory();
    }
    double began = clock_s();
    upload_pass(d, layout, row_ids, loss);
    forward(d, layout);
    head(d, layout, loss->n, with_backward, losses);
    struct err *e = wait(d);
    d->times.forward_s += clock_s() - began;
    for (int64_t i = 0; !e && i < loss->n; i++)
        *loss_sum += (double)loss->weights[i] * losses[i];
    if (!e && with_backward) {
        began = clock_s();
        backward(d, layout);
        e = wait(d);
        d->times.backward_s += clock_s() - began;
    }
    free(own);
    return e;
}
