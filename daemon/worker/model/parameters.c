#include "daemon/worker/model/parameters.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/philox.h"
#include "daemon/plan/tensors.h"
#include "store/safetensors.h"

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

void parameters_init(const struct parameters *p, uint64_t seed, float *flat)
{
    memset(flat, 0, (size_t)p->count * sizeof *flat);
    for (int i = 0; i < p->n; i++) {
        const struct parameter *item = &p->items[i];
        bool is_bias = strstr(item->name, ".bias") != NULL;
        for (int64_t j = 0; j < item->count && !is_bias; j++)
            flat[item->offset + j] =
                item->dims == 1 ? 1.0f
                                : p->config.initializer_range *
                                      philox_normal(seed, PHILOX_INIT, (uint64_t)i, 0, (uint64_t)j);
    }
}

/* "[4, 3]" */
static const char *shape_text(int dims, const int64_t *shape, char *text, size_t size)
{
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < dims && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    return text;
}

static struct err *load_one(const struct safetensors *file, const struct parameter *p, float *flat)
{
    const struct safetensor *tensor = safetensors_find(file, p->name);
    if (!tensor)
        return err_new(ERR_INVALID, "%s has no tensor %s, which config.json asks for",
                       safetensors_path(file), p->name);
    if (tensor->dims != p->dims || memcmp(tensor->shape, p->shape, (size_t)p->dims * 8)) {
        char has[64], wants[64];
        return err_new(ERR_INVALID, "%s: tensor %s has shape [%s], config.json asks for [%s]",
                       safetensors_path(file), p->name,
                       shape_text(tensor->dims, tensor->shape, has, sizeof has),
                       shape_text(p->dims, p->shape, wants, sizeof wants));
    }
    return safetensors_read_f32(file, tensor, 0, p->count, flat + p->offset);
}

static struct err *refuse_unknown(const struct parameters *p, const struct safetensors *file)
{
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const char *name = safetensors_at(file, i)->name;
        bool tied_head = p->config.tie_embeddings && !strcmp(name, "lm_head.weight");
        if (!tied_head && !parameters_find(p, name))
            return err_new(ERR_INVALID, "%s has a tensor %s, of which config.json knows nothing",
                           safetensors_path(file), name);
    }
    return NULL;
}

struct err *parameters_load(const struct parameters *p, const char *path, float *flat)
{
    struct safetensors *file;
    TRY(safetensors_open(path, &file));
    memset(flat, 0, (size_t)p->count * sizeof *flat);
    struct err *e = refuse_unknown(p, file);
    for (int i = 0; !e && i < p->n; i++)
        e = load_one(file, &p->items[i], flat);
    safetensors_close(file);
    return e;
}
