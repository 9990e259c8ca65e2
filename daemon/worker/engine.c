#include "daemon/worker/engine.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/worker/optim/zero1.h"
#include "store/weights.h"

struct engine {
    struct engine_options options;
    struct parameters parameters;
    int64_t windows[MODEL_MAX_LAYERS];
    int n_windows;
    int64_t flat_count;
    void *weights;    /* device, [flat_count] of options.dtype */
    float *gradients; /* device, [flat_count] */
    struct kernel_queue *queue;
    struct decoder *decoder;
    struct zero1 *zero1;
    struct plan_capacity capacity;
    /* host, [capacity.rows] */
    int32_t *row_ids, *loss_rows, *loss_labels;
    float *loss_weights;
    double optimizer_s;
};

static struct plan_shape shape_of(const struct engine *e, const struct objective_spec *objective,
                                  int64_t length)
{
    bool causal = objective->type == OBJECTIVE_AUTOREGRESSIVE;
    return (struct plan_shape){
        .mode = e->options.mode,
        .causal = causal,
        .degree = comm_world(e->options.group),
        .views = causal ? 0 : objective->views,
        .length = length,
        .block_size = objective->block_size,
    };
}

static size_t flat_bytes(const struct engine *e, enum dtype dtype)
{
    return (size_t)e->flat_count * dtype_size(dtype);
}

static void at_least(int64_t *most, int64_t value)
{
    if (value > *most)
        *most = value;
}

/* Room for a micro-batch of either length: a shorter one can give a rank more rows. */
static struct err *find_capacity(struct engine *e)
{
    const struct engine_options *o = &e->options;
    for (size_t i = 0; i < sizeof o->lengths / sizeof *o->lengths; i++) {
        struct plan_shape shape = shape_of(e, &o->objective, o->lengths[i]);
        struct plan_capacity c;
        TRY(plan_capacity(&shape, comm_rank(o->group), e->windows, e->n_windows, &c));
        at_least(&e->capacity.rows, c.rows);
        at_least(&e->capacity.loss_rows, c.loss_rows);
        at_least(&e->capacity.send_rows, c.send_rows);
        at_least(&e->capacity.buffer_rows, c.buffer_rows);
    }
    return NULL;
}

static struct err *init(struct engine *e)
{
    const struct engine_options *o = &e->options;
    const struct kernels *k = o->kernels;
    int kind_of_layer[MODEL_MAX_LAYERS];
    TRY(parameters_create(o->model, &e->parameters));
    e->n_windows = plan_windows(o->model, e->windows, kind_of_layer);
    TRY(find_capacity(e));
    e->flat_count = zero1_flat_count(&e->parameters, comm_world(o->world));
    TRY(k->queue_create(&e->queue));
    TRY(k->alloc(flat_bytes(e, o->dtype), &e->weights));
    TRY(k->alloc(flat_bytes(e, DTYPE_F32), (void **)&e->gradients));
    k->fill_zero(e->queue, e->weights, flat_bytes(e, o->dtype));
    k->fill_zero(e->queue, e->gradients, flat_bytes(e, DTYPE_F32));
    TRY(decoder_create(k, o->group, &e->parameters, o->dtype, e->weights, e->gradients,
                       &e->capacity, o->recompute, &e->decoder));
    TRY(zero1_create(k, o->world, &e->parameters, e->weights, o->dtype, e->gradients, &e->zero1));
    size_t rows = (size_t)e->capacity.rows + 1;
    e->row_ids = malloc(rows * sizeof *e->row_ids);
    e->loss_rows = malloc(rows * sizeof *e->loss_rows);
    e->loss_labels = malloc(rows * sizeof *e->loss_labels);
    e->loss_weights = malloc(rows * sizeof *e->loss_weights);
    if (!e->row_ids || !e->loss_rows || !e->loss_labels || !e->loss_weights)
        return err_no_memory();
    return k->queue_wait(e->queue);
}

struct err *engine_create(const struct engine_options *options, struct engine **out)
{
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return err_no_memory();
    e->options = *options;
    struct err *error = init(e);
    if (error)
        engine_destroy(e);
    else
        *out = e;
    return error;
}

void engine_destroy(struct engine *e)
{
    if (!e)
        return;
    free(e->loss_weights);
    free(e->loss_labels);
    free(e->loss_rows);
    free(e->row_ids);
    zero1_destroy(e->zero1);
    decoder_destroy(e->decoder);
    if (e->gradients)
        e->options.kernels->release(e->gradients);
    if (e->weights)
        e->options.kernels->release(e->weights);
    if (e->queue)
        e->options.kernels->queue_destroy(e->queue);
    parameters_free(&e->parameters);
    free(e);
}

size_t engine_memory_bytes(const struct engine *e)
{
    return flat_bytes(e, e->options.dtype) + flat_bytes(e, DTYPE_F32) +
           decoder_memory_bytes(e->decoder) + zero1_memory_bytes(e->zero1);
}

const struct parameters *engine_parameters(const struct engine *e)
{
    return &e->parameters;
}

/* Elements of weights in host memory at a time on their way to the device. */
#define PIECE ((int64_t)16 << 20)

/* Where first weights come from: out [count] becomes the elements from `begin` on. */
typedef struct err *(*weights_source)(const struct parameters *p, int64_t begin, int64_t count,
                                      const void *source, float *out);

/* Each rank fetches its own range, piece by piece; then they give each other the rest. */
static struct err *set_weights(struct engine *e, weights_source fetch, const void *source)
{
    const struct kernels *k = e->options.kernels;
    int64_t begin, count;
    zero1_range(e->zero1, &begin, &count);
    size_t bytes = (size_t)(count < PIECE ? count : PIECE) * sizeof(float);
    float *host;
    TRY(k->host_alloc(bytes, (void **)&host));
    struct err *error = NULL;
    for (int64_t at = 0; at < count && !error; at += PIECE) {
        int64_t n = count - at < PIECE ? count - at : PIECE;
        memset(host, 0, (size_t)n * sizeof *host); /* gaps between parameters */
        error = fetch(&e->parameters, begin + at, n, source, host);
        if (error)
            break;
        k->upload(e->queue, zero1_master(e->zero1) + at, host, (size_t)n * sizeof *host);
        error = k->queue_wait(e->queue);
    }
    k->host_release(host);
    return error ? error : zero1_gather_weights(e->zero1);
}

static struct err *draw(const struct parameters *p, int64_t begin, int64_t count,
                        const void *source, float *out)
{
    parameters_draw(p, *(const uint64_t *)source, begin, count, out);
    return NULL;
}

static struct err *read_files(const struct parameters *p, int64_t begin, int64_t count,
                              const void *source, float *out)
{
    return parameters_read(p, source, begin, count, out);
}

struct err *engine_init(struct engine *e, uint64_t seed)
{
    return set_weights(e, draw, &seed);
}

struct err *engine_load(struct engine *e, const char *directory, const struct file_roots *roots)
{
    struct weights *weights;
    TRY(weights_open(directory, roots, &weights));
    struct err *error = parameters_expect(&e->parameters, weights);
    if (!error)
        error = set_weights(e, read_files, weights);
    weights_close(weights);
    return error;
}

void engine_range(const struct engine *e, int64_t *begin, int64_t *count)
{
    zero1_range(e->zero1, begin, count);
}

struct err *engine_save_state(struct engine *e, float *weights, float *m, float *v)
{
    return zero1_save(e->zero1, weights, m, v);
}

struct err *engine_load_state(struct engine *e, const float *weights, const float *m,
                              const float *v)
{
    return zero1_load(e->zero1, weights, m, v);
}

void engine_zero_gradients(struct engine *e)
{
    e->options.kernels->fill_zero(e->queue, e->gradients, flat_bytes(e, DTYPE_F32));
}

static struct err *run(struct engine *e, const struct batch *batch,
                       const struct objective_spec *objective, const struct plan_layout *layout,
                       bool backward, double *loss_sum)
{
    batch_row_ids(batch, objective, layout, e->row_ids);
    struct decoder_loss loss = {
        .rows = e->loss_rows,
        .labels = e->loss_labels,
        .weights = e->loss_weights,
        .n = batch_loss_rows(batch, objective, layout, e->loss_rows, e->loss_labels,
                             e->loss_weights),
    };
    return decoder_pass(e->decoder, layout, e->row_ids, &loss, backward, loss_sum, NULL);
}

struct err *engine_accumulate(struct engine *e, const struct batch *batch,
                              const struct objective_spec *objective, bool backward,
                              struct engine_sums *sums)
{
    struct plan_shape shape = shape_of(e, objective, batch->length);
    struct plan_layout *layout = NULL;
    TRY(e->options.kernels->queue_wait(e->queue));
    TRY(plan_layout_create(&shape, comm_rank(e->options.group), batch->documents,
                           batch->n_documents, e->windows, e->n_windows, &layout));
    struct err *error = run(e, batch, objective, layout, backward, &sums->loss);
    plan_layout_free(layout);
    if (!error && comm_rank(e->options.group) == 0) /* once a group: N is the whole batch's */
        sums->denominator += (double)batch_denominator(batch, objective);
    return error;
}

struct err *engine_finish_sums(struct engine *e, struct engine_sums *sums, double *extra, size_t n)
{
    double values[2 + ENGINE_EXTRA] = {sums->loss, sums->denominator};
    assert(n <= ENGINE_EXTRA);
    for (size_t i = 0; i < n; i++)
        values[2 + i] = extra[i];
    TRY(comm_sum(e->options.world, values, 2 + n));
    sums->loss = values[0];
    sums->denominator = values[1];
    for (size_t i = 0; i < n; i++)
        extra[i] = values[2 + i];
    return NULL;
}

/* Keeps the clip factor c / (norm + this) finite, as PyTorch's clip_grad_norm_ has it. */
#define CLIP_EPS 1e-6

struct err *engine_update(struct engine *e, double denominator, const struct adamw *options,
                          float max_grad_norm, double *grad_norm)
{
    double began = clock_s(), norm;
    TRY(zero1_reduce(e->zero1));
    TRY(zero1_norm(e->zero1, &norm));
    norm /= denominator;
    if (!isfinite(norm))
        return err_new(
            ERR_INVALID,
            "the gradient's norm is %f: the weights were finite no more, or the data "
            "sent them there; a lower optimizer.lr or an optimizer.max_grad_norm may help",
            norm);
    double clip = max_grad_norm > 0 ? max_grad_norm / (norm + CLIP_EPS) : 1.0;
    struct adamw o = *options;
    o.grad_scale = (float)((clip < 1.0 ? clip : 1.0) / denominator);
    TRY(zero1_update(e->zero1, &o));
    *grad_norm = norm;
    e->optimizer_s += clock_s() - began;
    return NULL;
}

static struct err *to_host(struct engine *e, const float *device, float *host)
{
    const struct kernels *k = e->options.kernels;
    k->download(e->queue, host, device, (size_t)e->parameters.count * sizeof *host);
    return k->queue_wait(e->queue);
}

struct err *engine_weights(struct engine *e, float *host)
{
    enum device device = e->options.kernels->device;
    e->options.kernels->copy(e->queue,
                             tensor_1d(e->gradients, DTYPE_F32, device, e->parameters.count),
                             tensor_1d(e->weights, e->options.dtype, device, e->parameters.count));
    return to_host(e, e->gradients, host);
}

struct err *engine_gradients(struct engine *e, double denominator, float *host)
{
    TRY(zero1_reduce(e->zero1));
    TRY(zero1_gather_gradients(e->zero1));
    TRY(to_host(e, e->gradients, host));
    for (int64_t i = 0; i < e->parameters.count; i++)
        host[i] = (float)(host[i] / denominator);
    return NULL;
}

struct engine_times engine_times(const struct engine *e)
{
    struct decoder_times d = decoder_times(e->decoder);
    return (struct engine_times){d.forward_s, d.backward_s, d.exchange_s, e->optimizer_s};
}
