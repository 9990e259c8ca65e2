#include "daemon/worker/model/parameters.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/philox.h"
#include "daemon/plan/tensors.h"

/* Elements: every group of parameters starts on a 256-byte boundary. */
#define GROUP_ALIGNMENT 64

static struct err *add(struct parameters *p, const struct model_tensor *tensor)
{
    struct parameter *grown = realloc(p->items, (size_t)(p->n + 1) * sizeof *grown);
    if (!grown)
        return err_no_memory();
    p->items = grown;
    struct parameter *item = &p->items[p->n++];
    memset(item, 0, sizeof *item);
    snprintf(item->name, sizeof item->name, "%s", tensor->name);
    item->dims = tensor->dims;
    item->shape[0] = tensor->shape[0];
    item->shape[1] = tensor->shape[1];
    item->added_rows = tensor->added_rows;
    item->count = tensor->shape[0] * (tensor->dims == 2 ? tensor->shape[1] : 1);
    item->offset = p->count;
    p->count += item->count;
    return NULL;
}

static void align(struct parameters *p)
{
    p->count = (p->count + GROUP_ALIGNMENT - 1) / GROUP_ALIGNMENT * GROUP_ALIGNMENT;
}

struct err *parameters_create(const struct model_config *config, struct parameters *out)
{
    memset(out, 0, sizeof *out);
    out->config = *config;
    struct model_tensors_walk walk = {0};
    struct model_tensor tensor;
    struct err *e = NULL;
    while (!e && model_tensors_next(config, &walk, &tensor)) {
        if (tensor.starts_group)
            align(out);
        e = add(out, &tensor);
    }
    align(out);
    if (e)
        parameters_free(out);
    return e;
}

void parameters_free(struct parameters *p)
{
    free(p->items);
    memset(p, 0, sizeof *p);
}

const struct parameter *parameters_find(const struct parameters *p, const char *name)
{
    for (int i = 0; i < p->n; i++)
        if (!strcmp(p->items[i].name, name))
            return &p->items[i];
    return NULL;
}

static const struct parameter *find_in_layer(const struct parameters *p, int64_t layer,
                                             const char *rest)
{
    char name[96];
    snprintf(name, sizeof name, "model.layers.%lld.%s", (long long)layer, rest);
    return parameters_find(p, name);
}

/* The tensor at a parameter, `rows` of it and of those that follow in its group; none if there is
 * no such parameter. */
static struct tensor view(const struct parameter *item, int64_t rows, void *flat, enum dtype dtype,
                          enum device device)
{
    if (!item)
        return (struct tensor){0};
    void *data = (char *)flat + (size_t)item->offset * dtype_size(dtype);
    return item->dims == 2 ? tensor_2d(data, dtype, device, rows, item->shape[1])
                           : tensor_1d(data, dtype, device, rows);
}

struct layer_tensors parameters_layer(const struct parameters *p, int64_t layer, void *flat,
                                      enum dtype dtype, enum device device)
{
    const struct model_config *c = &p->config;
    int64_t qkv = (c->heads + 2 * c->kv_heads) * c->head_dim;
#define VIEW(name, rows) view(find_in_layer(p, layer, name), rows, flat, dtype, device)
    return (struct layer_tensors){
        .input_norm = VIEW("input_layernorm.weight", c->hidden),
        .qkv = VIEW("self_attn.q_proj.weight", qkv),
        .qkv_bias = VIEW("self_attn.q_proj.bias", qkv),
        .q_norm = VIEW("self_attn.q_norm.weight", c->head_dim),
        .k_norm = VIEW("self_attn.k_norm.weight", c->head_dim),
        .o = VIEW("self_attn.o_proj.weight", c->hidden),
        .o_bias = VIEW("self_attn.o_proj.bias", c->hidden),
        .post_norm = VIEW("post_attention_layernorm.weight", c->hidden),
        .gate_up = VIEW("mlp.gate_proj.weight", 2 * c->intermediate),
        .down = VIEW("mlp.down_proj.weight", c->hidden),
    };
#undef VIEW
}

struct model_tensors parameters_model(const struct parameters *p, void *flat, enum dtype dtype,
                                      enum device device)
{
    const struct model_config *c = &p->config;
    struct model_tensors m = {
        .embedding =
            view(parameters_find(p, "model.embed_tokens.weight"), c->vocab, flat, dtype, device),
        .norm = view(parameters_find(p, "model.norm.weight"), c->hidden, flat, dtype, device),
        .lm_head = view(parameters_find(p, "lm_head.weight"), c->vocab, flat, dtype, device),
    };
    if (c->tie_embeddings)
        m.lm_head = m.embedding;
    return m;
}

/* ---- First weights ---- */

/* The part of a parameter that lies in [begin, begin + count) of the flat buffer: its elements
 * [from, to), and where they go. False: no part of it does. */
struct part {
    int64_t from, to;
    float *out;
};

static bool part_of(const struct parameter *p, int64_t begin, int64_t count, float *out,
                    struct part *part)
{
    int64_t first = p->offset > begin ? p->offset : begin;
    int64_t end = p->offset + p->count < begin + count ? p->offset + p->count : begin + count;
    *part = (struct part){first - p->offset, end - p->offset, out + (first - begin)};
    return first < end;
}

void parameters_draw(const struct parameters *p, uint64_t seed, int64_t begin, int64_t count,
                     float *out)
{
    for (int i = 0; i < p->n; i++) {
        const struct parameter *item = &p->items[i];
        struct part part;
        if (!part_of(item, begin, count, out, &part) || strstr(item->name, ".bias"))
            continue;
        for (int64_t j = part.from; j < part.to; j++)
            part.out[j - part.from] =
                item->dims == 1 ? 1.0f
                                : p->config.initializer_range *
                                      philox_normal(seed, PHILOX_INIT, (uint64_t)i, 0, (uint64_t)j);
    }
}

#define MEAN_ELEMENTS ((int64_t)1 << 20) /* read at a time */

/* mean [columns]: of the rows that the file has. */
static struct err *read_mean(const struct weights_tensor *tensor, int64_t columns, double *mean)
{
    int64_t n = tensor->tensor->elements;
    int64_t most = columns < MEAN_ELEMENTS ? MEAN_ELEMENTS / columns * columns : columns;
    float *values = malloc((size_t)(n < most ? n : most) * sizeof *values);
    if (!values)
        return err_no_memory();
    struct err *e = NULL;
    memset(mean, 0, (size_t)columns * sizeof *mean);
    for (int64_t at = 0; at < n && !e; at += most) {
        int64_t now = n - at < most ? n - at : most;
        e = safetensors_read_f32(tensor->file, tensor->tensor, at, now, values);
        for (int64_t i = 0; i < now && !e; i++)
            mean[i % columns] += values[i];
    }
    for (int64_t j = 0; j < columns; j++)
        mean[j] /= (double)(n / columns);
    free(values);
    return e;
}

static struct err *fill_added(const struct weights_tensor *tensor, int64_t columns,
                              const struct part *part)
{
    double *mean = malloc((size_t)columns * sizeof *mean);
    struct err *e = mean ? read_mean(tensor, columns, mean) : err_no_memory();
    for (int64_t j = part->from; j < part->to && !e; j++)
        part->out[j - part->from] = (float)mean[j % columns];
    free(mean);
    return e;
}

static struct err *read_part(const struct parameter *item, const struct weights_tensor *tensor,
                             struct part part)
{
    int64_t there = item->count - item->added_rows * item->shape[1];
    int64_t to = part.to < there ? part.to : there;
    if (part.from < to)
        TRY(safetensors_read_f32(tensor->file, tensor->tensor, part.from, to - part.from,
                                 part.out));
    if (part.to <= there)
        return NULL;
    int64_t from = part.from > there ? part.from : there;
    struct part added = {from, part.to, part.out + (from - part.from)};
    return fill_added(tensor, item->shape[1], &added);
}

/* Whether a head that the files have, though it is tied to the embedding, says the same. */
static struct err *compare_head(const struct parameter *item, const struct weights_tensor *head,
                                const struct part *part)
{
    int64_t there = item->count - item->added_rows * item->shape[1];
    int64_t n = (part->to < there ? part->to : there) - part->from;
    if (n <= 0)
        return NULL;
    float *values = malloc((size_t)n * sizeof *values);
    if (!values)
        return err_no_memory();
    struct err *e = safetensors_read_f32(head->file, head->tensor, part->from, n, values);
    bool same = !e && memcmp(values, part->out, (size_t)n * sizeof *values) == 0;
    free(values);
    if (e || same)
        return e;
    return err_new(ERR_INVALID,
                   "%s has an lm_head.weight that differs from %s, to which config.json ties it: "
                   "tie_word_embeddings must be false if both count",
                   safetensors_path(head->file), item->name);
}

struct err *parameters_read(const struct parameters *p, const struct weights *weights,
                            int64_t begin, int64_t count, float *out)
{
    const struct weights_tensor *head =
        p->config.tie_embeddings ? weights_find(weights, "lm_head.weight") : NULL;
    for (int i = 0; i < p->n; i++) {
        const struct parameter *item = &p->items[i];
        struct part part;
        if (!part_of(item, begin, count, out, &part))
            continue;
        TRY(read_part(item, weights_find(weights, item->name), part));
        if (head && !strcmp(item->name, "model.embed_tokens.weight"))
            TRY(compare_head(item, head, &part));
    }
    return NULL;
}

struct err *parameters_expect(const struct parameters *p, const struct weights *weights)
{
    size_t n;
    const struct weights_tensor *tensors = weights_tensors(weights, &n);
    struct tensor_seen *seen = calloc(n + 1, sizeof *seen);
    if (!seen)
        return err_no_memory();
    for (size_t i = 0; i < n; i++)
        seen[i] = (struct tensor_seen){
            .name = tensors[i].tensor->name,
            .file = safetensors_path(tensors[i].file),
            .dims = tensors[i].tensor->dims,
            .shape = tensors[i].tensor->shape,
            .dtype = safetensors_dtype_name(tensors[i].tensor->dtype),
        };
    struct problems problems = {0};
    model_tensors_check(&p->config, seen, n, weights_path(weights), "", &problems);
    struct err *e = NULL;
    if (problems.no_memory)
        e = err_no_memory();
    else if (problems.count == 1)
        e = err_new(ERR_INVALID, "%s", problems.items[0].message);
    else if (problems.count > 1)
        e = err_new(ERR_INVALID, "%s, and %zu more", problems.items[0].message, problems.count - 1);
    problems_free(&problems);
    free(seen);
    return e;
}
