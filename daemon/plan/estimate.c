/* What a rank needs and moves, before anything runs. The formulas follow the worker's buffers one
 * by one: parameters and optimizer state, the inputs of all layers, one layer's working set and its
 * gradients (or every layer's set where nothing is recomputed), the exchanged keys, the loss head.
 * Left out are a few bytes a row (ids, positions), alignment and what libraries keep for
 * themselves.
 *
 * Sums saturate: an absurd spec gives an absurd size, which fits nowhere.
 */
#include "daemon/plan/layout.h"

#include <stdlib.h>

/* Rows of logits that exist at a time, as in the worker. */
#define LOGIT_ROWS 512

static void add(size_t *bytes, int64_t a, int64_t b, int64_t c)
{
    size_t product;
    if (__builtin_mul_overflow(a, b, &product) || __builtin_mul_overflow(product, c, &product) ||
        __builtin_add_overflow(*bytes, product, bytes))
        *bytes = SIZE_MAX;
}

static void add_wire(int64_t *bytes, int64_t a, int64_t b, int64_t c)
{
    size_t sum = (size_t)*bytes;
    add(&sum, a, b, c);
    *bytes = sum > INT64_MAX ? INT64_MAX : (int64_t)sum;
}

static int64_t micro_batches(const struct job_spec *spec)
{
    return spec->batch.sequences / spec->parallel.data / spec->batch.micro_sequences;
}

/* Gradients accumulate in fp32 where a rank has more than one micro-batch. */
static int64_t gradient_bytes(const struct job_spec *spec, int64_t dtype_bytes)
{
    return micro_batches(spec) > 1 ? 4 : dtype_bytes;
}

static int64_t shard(const struct job_spec *spec, int64_t world)
{
    return (model_parameters(&spec->model.config) + world - 1) / world;
}

/* ---- Memory ---- */

static void estimate_parameters(const struct job_spec *spec, int64_t world, int64_t dtype_bytes,
                                struct plan_estimate *out)
{
    int64_t p = model_parameters(&spec->model.config), s = shard(spec, world);
    add(&out->weights_bytes, p, dtype_bytes, 1);
    add(&out->gradients_bytes, p, gradient_bytes(spec, dtype_bytes), 1);
    add(&out->optimizer_bytes, s, 2 * 4, 1); /* two moments, fp32 */
    if (dtype_bytes < 4)
        add(&out->optimizer_bytes, s, 4, 1);  /* master weights */
    add(&out->checkpoint_bytes, s, 3 * 4, 1); /* a snapshot of weights and moments on the host */
    if (world > 1)                            /* the reduce-scatter's scratch */
        add(&out->optimizer_bytes, s, world, gradient_bytes(spec, dtype_bytes));
}

static void estimate_activations(const struct job_spec *spec, const struct plan_capacity *capacity,
                                 int64_t dtype_bytes, struct plan_estimate *out)
{
    const struct model_config *m = &spec->model.config;
    int64_t n = capacity->rows, h = m->hidden, f = m->intermediate;
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim;
    int64_t sets = spec->recompute == RECOMPUTE_NONE ? m->layers : 1;

    /* Forward, a row: both normed inputs and the stream between them; q, k, v as projected; q, k, v
     * with norm and RoPE; the attention's output; gate, up and their product. */
    int64_t set = 3 * h + (q + 2 * kv) + (q + 2 * kv) + q + 3 * f;
    /* Statistics of the norms (two of rows, one a head of q and k) and log-sum-exp, fp32. */
    int64_t statistics = 2 + 2 * m->heads + m->kv_heads;
    add(&out->activations_bytes, n * sets, set, dtype_bytes);
    add(&out->activations_bytes, n * sets, statistics, 4);
    /* Inputs of the layers and of the final norm. */
    add(&out->activations_bytes, n * (m->layers + 1), h, dtype_bytes);
    /* Backward: the gradient of each part of the set once; the attention's delta, fp32. */
    add(&out->activations_bytes, n, set, dtype_bytes);
    add(&out->activations_bytes, n, m->heads, 4);

    /* Keys and values as they came, packed to go, their gradients, the scratch of their sum. */
    add(&out->exchange_bytes, capacity->buffer_rows * (sets + 1), 2 * kv, dtype_bytes);
    add(&out->exchange_bytes, capacity->send_rows, 2 * kv, dtype_bytes);
    add(&out->exchange_bytes, capacity->buffer_rows, 2 * kv, 4);

    /* The rows that carry loss before and behind the final norm, and both gradients; logits. */
    int64_t loss_rows = capacity->loss_rows;
    add(&out->loss_bytes, loss_rows, 4 * h, dtype_bytes);
    add(&out->loss_bytes, loss_rows < LOGIT_ROWS ? loss_rows : LOGIT_ROWS, m->vocab, dtype_bytes);
}

static struct plan_shape shape_as(const struct job_spec *spec, enum parallel_mode mode, int degree)
{
    struct plan_shape shape = plan_shape_of(spec);
    shape.mode = mode;
    shape.degree = degree;
    return shape;
}

static struct err *estimate_memory(const struct job_spec *spec, const struct plan_shape *shape,
                                   int rank, int64_t dtype_bytes, struct plan_estimate *out)
{
    int64_t windows[MODEL_MAX_LAYERS];
    int kind_of_layer[MODEL_MAX_LAYERS];
    int n_kinds = plan_windows(&spec->model.config, windows, kind_of_layer);
    struct plan_capacity capacity;
    TRY(plan_capacity(shape, rank, windows, n_kinds, &capacity));
    estimate_parameters(spec, (int64_t)shape->degree * spec->parallel.data, dtype_bytes, out);
    estimate_activations(spec, &capacity, dtype_bytes, out);
    const size_t parts[] = {out->weights_bytes,     out->gradients_bytes, out->optimizer_bytes,
                            out->activations_bytes, out->exchange_bytes,  out->loss_bytes,
                            out->checkpoint_bytes};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (__builtin_add_overflow(out->total_bytes, parts[i], &out->total_bytes))
            out->total_bytes = SIZE_MAX;
    return NULL;
}

/* ---- Traffic and work ---- */

/* Rows whose gradients come back to this rank, once from every other rank that has them. */
static int64_t gradient_rows(const struct plan_kind *kind, int rank, int degree)
{
    switch (kind->exchange) {
    case EXCHANGE_GATHER:
        return kind->send_rows * (degree - 1);
    case EXCHANGE_ALL_TO_ALL:
        return kind->send_rows - kind->send_counts[rank];
    case EXCHANGE_NONE:
        break;
    }
    return 0;
}

static struct err *estimate_kind(const struct job_spec *spec, const struct plan_shape *shape,
                                 int rank, const struct plan_group *group,
                                 const struct plan_document *documents, size_t n_documents,
                                 int64_t window, const int64_t passes[2], int64_t dtype_bytes,
                                 struct plan_estimate *out)
{
    const struct model_config *m = &spec->model.config;
    int64_t row_bytes = 2 * m->kv_heads * m->head_dim * dtype_bytes; /* keys and values */
    struct plan_kind kind = {0};
    struct err *e = plan_exchange_create(shape, rank, group, documents, n_documents, window, &kind);
    if (!e) {
        add_wire(&out->attention_wire_bytes, kind.wire_rows, row_bytes, passes[0]);
        add_wire(&out->attention_wire_bytes, gradient_rows(&kind, rank, shape->degree), row_bytes,
                 passes[1]);
        int first = group->first[rank];
        int64_t pairs = plan_runs_pairs(shape, group->runs + first, group->first[rank + 1] - first,
                                        documents, n_documents, window);
        add_wire(&out->visible_pairs, pairs, passes[1], 1);
    }
    plan_kind_free(&kind);
    return e;
}

static struct err *estimate_layers(const struct job_spec *spec, const struct plan_shape *shape,
                                   int rank, const struct plan_group *group, int64_t dtype_bytes,
                                   struct plan_estimate *out)
{
    int64_t windows[MODEL_MAX_LAYERS];
    int kind_of_layer[MODEL_MAX_LAYERS];
    int64_t layers = spec->model.config.layers;
    int n_kinds = plan_windows(&spec->model.config, windows, kind_of_layer);
    size_t n_documents = (size_t)spec->batch.micro_sequences;
    struct plan_document *documents = calloc(n_documents, sizeof *documents);
    if (!documents)
        return err_no_memory();
    for (size_t i = 0; i < n_documents; i++)
        documents[i] = (struct plan_document){(int64_t)i * spec->data.sequence_length,
                                              (int64_t)(i + 1) * spec->data.sequence_length};

    struct err *e = NULL;
    for (int kind = 0; kind < n_kinds && !e; kind++) {
        int64_t passes[2] = {0, 0}; /* keys out, gradients back: over the layers of this kind */
        for (int64_t layer = 0; layer < layers; layer++) {
            if (kind_of_layer[layer] != kind)
                continue;
            /* A recomputed layer gathers again; the last one's backward follows its forward. */
            bool again = spec->recompute == RECOMPUTE_LAYER && layer < layers - 1;
            passes[0] += again ? 2 : 1;
            passes[1]++;
        }
        e = estimate_kind(spec, shape, rank, group, documents, n_documents, windows[kind], passes,
                          dtype_bytes, out);
    }
    free(documents);
    return e;
}

struct err *plan_estimate(const struct job_spec *spec, enum parallel_mode mode, int degree,
                          int rank, size_t dtype_bytes, struct plan_estimate *out)
{
    struct plan_shape shape = shape_as(spec, mode, degree);
    int64_t world = (int64_t)degree * spec->parallel.data;
    *out = (struct plan_estimate){0};
    TRY(estimate_memory(spec, &shape, rank, (int64_t)dtype_bytes, out));

    struct plan_group group;
    TRY(plan_group_create(&shape, &group));
    struct err *e = estimate_layers(spec, &shape, rank, &group, (int64_t)dtype_bytes, out);
    plan_group_free(&group);
    /* Every other rank's share of this rank's shard of the gradient, then their shards of the
     * weights. */
    add_wire(&out->step_wire_bytes, world - 1, shard(spec, world),
             gradient_bytes(spec, (int64_t)dtype_bytes) + (int64_t)dtype_bytes);
    return e;
}

/* ---- "parallel": "auto" ---- */

/* The most replicas that the batch can be shared out to. */
static int most_replicas(const struct job_spec *spec, int room)
{
    for (int data = room; data > 1; data--)
        if (spec->batch.sequences % data == 0 &&
            spec->batch.sequences / data % spec->batch.micro_sequences == 0)
            return data;
    return 1;
}

/* What the rank that needs most needs. */
static struct err *largest_rank(const struct job_spec *spec, const struct plan_shape *shape,
                                size_t dtype_bytes, size_t *bytes)
{
    *bytes = 0;
    for (int rank = 0; rank < shape->degree; rank++) {
        struct plan_estimate estimate = {0};
        TRY(estimate_memory(spec, shape, rank, (int64_t)dtype_bytes, &estimate));
        if (estimate.total_bytes > *bytes)
            *bytes = estimate.total_bytes;
    }
    return NULL;
}

struct err *plan_choose(const struct job_spec *spec, int slots, size_t slot_bytes,
                        size_t dtype_bytes, enum parallel_mode *mode, int *degree, int *data)
{
    const double mib = 1024.0 * 1024.0;
    struct job_spec tried = *spec; /* its strings stay the caller's */
    struct plan_shape shape = plan_shape_of(spec);
    size_t least = SIZE_MAX;
    int least_degree = 1;
    if (slots < 1)
        return err_new(ERR_CONFLICT, "parallel \"auto\" needs at least one free slot");
    for (int r = 1; r <= slots && (r == 1 || shape.length >= 2 * (int64_t)r); r++) {
        size_t bytes;
        tried.parallel.data = most_replicas(spec, slots / r);
        shape.mode = r == 1 ? MODE_NONE : MODE_CSBP;
        shape.degree = r;
        TRY(largest_rank(&tried, &shape, dtype_bytes, &bytes));
        if (bytes <= slot_bytes) {
            *mode = shape.mode;
            *degree = r;
            *data = tried.parallel.data;
            return NULL;
        }
        if (bytes < least) {
            least = bytes;
            least_degree = r;
        }
    }
    return err_new(ERR_INVALID,
                   "parallel \"auto\" finds no degree that fits in %d slots of %.0f MiB: the least "
                   "is %.0f MiB a rank at degree %d (shorten data.sequence_length or use a smaller "
                   "model)",
                   slots, (double)slot_bytes / mib, (double)least / mib, least_degree);
}
