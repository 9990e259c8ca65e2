/* What a rank needs and moves, before anything runs. The formulas follow the worker's buffers one
 * by one: parameters and optimizer state, the inputs of all layers, one layer's working set and its
 * gradients (or every layer's set where nothing is recomputed), the exchanged keys, the loss head.
 * Left out are a few bytes a row (ids, positions), alignment and what libraries keep for
 * themselves.
 *
 * Sums saturate: an absurd spec gives an absurd size, which fits nowhere.
 */
#include "daemon/plan/layout.h"

#include <inttypes.h>
#include <stdlib.h>

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

/* Of gradients: those of weights, and those of keys and values on their way between ranks. */
#define GRADIENT_BYTES 4

int64_t plan_logit_rows(size_t dtype_bytes)
{
    return dtype_bytes < 4 ? 4096 : 512;
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
    add(&out->gradients_bytes, p, GRADIENT_BYTES, 1);
    add(&out->optimizer_bytes, s, 2 * 4, 1); /* two moments, fp32 */
    if (dtype_bytes < 4)
        add(&out->optimizer_bytes, s, 4, 1);  /* master weights */
    add(&out->checkpoint_bytes, s, 3 * 4, 1); /* a snapshot of weights and moments on the host */
    if (world > 1)                            /* the reduce-scatter's scratch */
        add(&out->optimizer_bytes, s, world, GRADIENT_BYTES);
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
    /* Backward: the gradient of each part of the set once, those of q, k and v behind norm and RoPE
     * in fp32; the attention's delta, fp32. */
    add(&out->activations_bytes, n, set - (q + 2 * kv), dtype_bytes);
    add(&out->activations_bytes, n, q + 2 * kv, GRADIENT_BYTES);
    add(&out->activations_bytes, n, m->heads, 4);

    /* Keys and values as they came, packed to go, their gradients, the scratch of their sum. */
    add(&out->exchange_bytes, capacity->buffer_rows * sets, 2 * kv, dtype_bytes);
    add(&out->exchange_bytes, capacity->send_rows, 2 * kv, dtype_bytes);
    add(&out->exchange_bytes, capacity->buffer_rows * 2, 2 * kv, GRADIENT_BYTES);
    if (dtype_bytes < GRADIENT_BYTES) /* gradients that came, which fit where keys went otherwise */
        add(&out->exchange_bytes, capacity->send_rows, 2 * kv, GRADIENT_BYTES);

    /* The rows that carry loss before and behind the final norm, and both gradients; logits. */
    int64_t loss_rows = capacity->loss_rows;
    add(&out->loss_bytes, loss_rows, 4 * h, dtype_bytes);
    int64_t logit_rows = plan_logit_rows((size_t)dtype_bytes);
    add(&out->loss_bytes, loss_rows < logit_rows ? loss_rows : logit_rows, m->vocab, dtype_bytes);
}

static struct plan_shape shape_as(const struct job_spec *spec, enum parallel_mode mode, int degree)
{
    struct plan_shape shape = plan_shape_of(spec);
    shape.mode = mode;
    shape.degree = degree;
    return shape;
}

static void estimate_memory(const struct job_spec *spec, int64_t world,
                            const struct plan_capacity *capacity, int64_t dtype_bytes,
                            struct plan_estimate *out)
{
    *out = (struct plan_estimate){.rows = capacity->rows, .loss_rows = capacity->loss_rows};
    estimate_parameters(spec, world, dtype_bytes, out);
    estimate_activations(spec, capacity, dtype_bytes, out);
    const size_t parts[] = {out->weights_bytes,     out->gradients_bytes, out->optimizer_bytes,
                            out->activations_bytes, out->exchange_bytes,  out->loss_bytes,
                            out->checkpoint_bytes};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (__builtin_add_overflow(out->total_bytes, parts[i], &out->total_bytes))
            out->total_bytes = SIZE_MAX;
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

/* What an estimate is made for. */
struct subject {
    const struct job_spec *spec;
    struct plan_shape shape;
    int first, count; /* ranks */
    int64_t dtype_bytes;
    struct plan_group group;
    int n_kinds;
    int64_t windows[MODEL_MAX_LAYERS];
    int kind_of_layer[MODEL_MAX_LAYERS];
};

static struct err *estimate_kind(const struct subject *s, const struct plan_document *documents,
                                 size_t n_documents, int64_t window, const int64_t passes[2],
                                 struct plan_estimate *out)
{
    const struct model_config *m = &s->spec->model.config;
    const struct plan_group *group = &s->group;
    int64_t row = 2 * m->kv_heads * m->head_dim; /* keys and values */
    struct plan_needs needs;
    struct err *e = plan_needs_create(&s->shape, group, documents, n_documents, window, &needs);
    for (int i = 0; i < s->count && !e; i++) {
        int rank = s->first + i, run = group->first[rank];
        struct plan_kind kind = {0};
        e = plan_exchange_create(&s->shape, rank, group, &needs, window, &kind);
        if (!e) {
            add_wire(&out[i].attention_wire_bytes, kind.wire_rows, row * s->dtype_bytes, passes[0]);
            add_wire(&out[i].attention_wire_bytes, gradient_rows(&kind, rank, s->shape.degree),
                     row * GRADIENT_BYTES, passes[1]);
            int64_t pairs =
                plan_runs_pairs(&s->shape, group->runs + run, group->first[rank + 1] - run,
                                documents, n_documents, window);
            add_wire(&out[i].visible_pairs, pairs, passes[1], 1);
        }
        plan_kind_free(&kind);
    }
    plan_needs_free(&needs);
    return e;
}

static struct err *estimate_layers(const struct subject *s, struct plan_estimate *out)
{
    const struct job_spec *spec = s->spec;
    int64_t layers = spec->model.config.layers;
    size_t n_documents = (size_t)spec->batch.micro_sequences;
    struct plan_document *documents = calloc(n_documents, sizeof *documents);
    if (!documents)
        return err_no_memory();
    for (size_t i = 0; i < n_documents; i++)
        documents[i] = (struct plan_document){(int64_t)i * spec->data.sequence_length,
                                              (int64_t)(i + 1) * spec->data.sequence_length};

    struct err *e = NULL;
    for (int kind = 0; kind < s->n_kinds && !e; kind++) {
        int64_t passes[2] = {0, 0}; /* keys out, gradients back: over the layers of this kind */
        for (int64_t layer = 0; layer < layers; layer++) {
            if (s->kind_of_layer[layer] != kind)
                continue;
            /* A recomputed layer gathers again; the last one's backward follows its forward. */
            bool again = spec->recompute == RECOMPUTE_LAYER && layer < layers - 1;
            passes[0] += again ? 2 : 1;
            passes[1]++;
        }
        e = estimate_kind(s, documents, n_documents, s->windows[kind], passes, out);
    }
    free(documents);
    return e;
}

/* ---- All of it ---- */

/* Pieces of rows, and pairs of ranks, that are looked at: some 100 ns each. Only windows that end
 * within a block of corrupted rows make pieces without number: one a block. */
#define MAX_PARTS ((double)(1 << 22))

static struct err *check_work(const struct subject *s)
{
    const struct plan_shape *shape = &s->shape;
    double streams = 1 + shape->views, ranks = shape->degree;
    double documents = (double)s->spec->batch.micro_sequences;
    double parts = (ranks * ranks + streams * (documents + 4 * ranks)) * s->n_kinds;
    for (int i = 0; i < s->n_kinds; i++)
        if (!shape->causal && shape->mode == MODE_CSBP && shape->degree > 1 && s->windows[i] > 1 &&
            s->windows[i] <= shape->block_size)
            parts += ranks * (double)(shape->length / shape->block_size);
    if (parts > MAX_PARTS)
        return err_new(ERR_INVALID,
                       "data.sequence_length %" PRId64 " at parallel.degree %d, %d distinct "
                       "windows and batch.micro_sequences %" PRId64
                       " is cut into about %.0f parts, but at most %.0f can be planned",
                       s->spec->data.sequence_length, shape->degree, s->n_kinds,
                       s->spec->batch.micro_sequences, parts, MAX_PARTS);
    return NULL;
}

static struct err *begin(struct subject *s, const struct job_spec *spec, enum parallel_mode mode,
                         int degree, int first, int count, size_t dtype_bytes)
{
    *s = (struct subject){.spec = spec,
                          .shape = shape_as(spec, mode, degree),
                          .first = first,
                          .count = count,
                          .dtype_bytes = (int64_t)dtype_bytes};
    s->n_kinds = plan_windows(&spec->model.config, s->windows, s->kind_of_layer);
    TRY(plan_check(&s->shape, first, NULL, 0, s->windows, s->n_kinds));
    TRY(check_work(s));
    return plan_group_create(&s->shape, &s->group);
}

static struct err *memory_of_ranks(const struct subject *s, struct plan_estimate *out)
{
    struct plan_capacity *capacities = calloc((size_t)s->count, sizeof *capacities);
    if (!capacities)
        return err_no_memory();
    struct err *e = plan_capacities(&s->shape, &s->group, s->first, s->count, s->windows,
                                    s->n_kinds, capacities);
    int64_t world = (int64_t)s->shape.degree * s->spec->parallel.data;
    for (int i = 0; i < s->count && !e; i++)
        estimate_memory(s->spec, world, &capacities[i], s->dtype_bytes, &out[i]);
    free(capacities);
    return e;
}

static struct err *estimate_ranks(const struct job_spec *spec, enum parallel_mode mode, int degree,
                                  int first, int count, size_t dtype_bytes,
                                  struct plan_estimate *out)
{
    struct subject s;
    TRY(begin(&s, spec, mode, degree, first, count, dtype_bytes));
    struct err *e = memory_of_ranks(&s, out);
    if (!e)
        e = estimate_layers(&s, out);
    plan_group_free(&s.group);
    /* Every other rank's share of this rank's shard of the gradient, then their shards of the
     * weights. */
    int64_t world = (int64_t)degree * spec->parallel.data;
    for (int i = 0; i < count && !e; i++)
        add_wire(&out[i].step_wire_bytes, world - 1, shard(spec, world),
                 GRADIENT_BYTES + s.dtype_bytes);
    return e;
}

struct err *plan_estimates(const struct job_spec *spec, enum parallel_mode mode, int degree,
                           size_t dtype_bytes, struct plan_estimate *out)
{
    return estimate_ranks(spec, mode, degree, 0, degree, dtype_bytes, out);
}

struct err *plan_estimate(const struct job_spec *spec, enum parallel_mode mode, int degree,
                          int rank, size_t dtype_bytes, struct plan_estimate *out)
{
    return estimate_ranks(spec, mode, degree, rank, 1, dtype_bytes, out);
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
static struct err *largest_rank(const struct job_spec *spec, enum parallel_mode mode, int degree,
                                size_t dtype_bytes, size_t *bytes)
{
    *bytes = 0;
    struct plan_estimate *estimates = calloc((size_t)degree, sizeof *estimates);
    if (!estimates)
        return err_no_memory();
    struct subject s = {0};
    struct err *e = begin(&s, spec, mode, degree, 0, degree, dtype_bytes);
    if (!e)
        e = memory_of_ranks(&s, estimates);
    plan_group_free(&s.group);
    for (int rank = 0; rank < degree; rank++)
        if (estimates[rank].total_bytes > *bytes)
            *bytes = estimates[rank].total_bytes;
    free(estimates);
    return e;
}

/* Every degree while they are few, then powers of two, and `most` at the end. */
static int next_degree(int degree, int most)
{
    int next = degree < 16 ? degree + 1 : 2 * degree;
    return degree < most && next > most ? most : next;
}

struct err *plan_choose(const struct job_spec *spec, int slots, size_t slot_bytes,
                        size_t dtype_bytes, enum parallel_mode *mode, int *degree, int *data)
{
    const double mib = 1024.0 * 1024.0;
    struct job_spec tried = *spec; /* its strings stay the caller's */
    size_t least = SIZE_MAX;
    int least_degree = 1;
    int64_t chunks = plan_shape_of(spec).length / 2; /* every rank has two */
    int most = chunks < slots ? (int)chunks : slots;
    if (slots < 1)
        return err_new(ERR_CONFLICT, "parallel \"auto\" needs at least one free slot");
    for (int r = 1; r == 1 || r <= most; r = next_degree(r, most)) {
        size_t bytes;
        enum parallel_mode tried_mode = r == 1 ? MODE_NONE : MODE_CSBP;
        tried.parallel.data = most_replicas(spec, slots / r);
        TRY(largest_rank(&tried, tried_mode, r, dtype_bytes, &bytes));
        if (bytes <= slot_bytes) {
            *mode = tried_mode;
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
