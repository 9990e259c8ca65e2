/* config.json of the Llama, Mistral, Qwen2 and Qwen3 families.
 *
 * Names and defaults are those of the transformers library, so that a published config.json means
 * here what it means there. Two kinds of field are not read: those that do not touch the
 * mathematics (ignored), and those that would change it in a way that is not built (refused by
 * name: training something else than what the file describes would be worse than not training).
 */
#include "daemon/plan/model.h"

#include <stdio.h>
#include <string.h>

#include "daemon/plan/config_reader.h"

#define MAX_WIDTH ((int64_t)1 << 20) /* of hidden, intermediate; keeps every product in 64 bits */
#define MAX_HEADS ((int64_t)1 << 12)
#define MAX_HEAD_DIM ((int64_t)1 << 12)
#define MAX_WINDOW ((int64_t)1 << 31)

#define DEFAULT_WINDOW 4096 /* of the families that have windows */
#define DEFAULT_FULL_LAYERS 28

static const char *const family_names[] = {[MODEL_LLAMA] = "llama",
                                           [MODEL_MISTRAL] = "mistral",
                                           [MODEL_QWEN2] = "qwen2",
                                           [MODEL_QWEN3] = "qwen3",
                                           NULL};

static void refuse_unsupported(const struct config_reader *r, enum model_family family)
{
    static const char *const activations[] = {"silu", "swish", NULL}; /* two names of one */
    char pointer[FIELDS_POINTER_BYTES];
    int activation;
    const cJSON *item = config_member(r, "hidden_act", pointer);
    if (item)
        field_enum(item, pointer, activations, &activation, r->problems);
    config_refuse_number_but(r, "attention_dropout", 0.0);
    config_refuse_number_but(r, "partial_rotary_factor", 1.0);
    config_refuse_true(r, "mlp_bias");
    config_refuse(r, "attn_logit_softcapping");
    config_refuse(r, "final_logit_softcapping");
    config_refuse(r, "quantization_config");
    if (family == MODEL_MISTRAL)
        config_refuse_true(r, "attention_bias");
}

/* ---- Windows ---- */

/* Mistral: the window holds for every layer, whatever the types; they must not say otherwise. */
static void check_layer_type(const struct config_reader *r, const char *pointer, int64_t window,
                             bool sliding, int64_t layer, struct model_config *out)
{
    if (sliding && out->family == MODEL_LLAMA)
        problems_add(r->problems, pointer,
                     "is \"sliding_attention\", which the llama family does not have");
    else if (sliding && window == 0)
        problems_add(r->problems, pointer,
                     "is \"sliding_attention\", which needs %sa sliding_window",
                     out->family == MODEL_MISTRAL ? "" : "use_sliding_window true and ");
    else if (!sliding && window != 0 && out->family == MODEL_MISTRAL)
        problems_add(r->problems, pointer,
                     "is \"full_attention\", but a Mistral model's sliding_window holds for every "
                     "layer: it must be null or the type \"sliding_attention\"");
    out->window[layer] = sliding ? window : 0;
}

static void read_layer_types(const struct config_reader *r, const cJSON *types, const char *pointer,
                             int64_t window, struct model_config *out)
{
    static const char *const names[] = {"full_attention", "sliding_attention", NULL};
    if (!cJSON_IsArray(types)) {
        problems_add(r->problems, pointer, "is %s but must be an array of strings",
                     field_type_name(types));
        return;
    }
    if (cJSON_GetArraySize(types) != out->layers)
        problems_add(r->problems, pointer,
                     "has %d entries but must have one a layer (num_hidden_layers)",
                     cJSON_GetArraySize(types));
    int64_t layer = 0;
    for (const cJSON *item = types->child; item && layer < out->layers; item = item->next) {
        char at[FIELDS_POINTER_BYTES], index[24];
        snprintf(index, sizeof index, "%d", (int)layer);
        field_pointer(at, pointer, index);
        int type;
        if (field_enum(item, at, names, &type, r->problems))
            check_layer_type(r, at, window, type == 1, layer, out);
        layer++;
    }
}

/* Rows; 0: no layer has a window. Left out is not null here. */
static int64_t read_window(const struct config_reader *r, const struct model_config *model)
{
    static const char key[] = "sliding_window";
    int64_t window = DEFAULT_WINDOW;
    if (model->family == MODEL_LLAMA ||
        (model->family != MODEL_MISTRAL && !config_bool(r, "use_sliding_window", false)) ||
        cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(r->json, key)))
        return 0;
    config_integer(r, key, 1, MAX_WINDOW, DEFAULT_WINDOW, &window);
    return window;
}

static void read_windows(const struct config_reader *r, struct model_config *out)
{
    char pointer[FIELDS_POINTER_BYTES];
    int64_t window = read_window(r, out), full_layers = 0;
    memset(out->window, 0, sizeof out->window);
    if (out->family != MODEL_MISTRAL && window != 0) {
        full_layers = DEFAULT_FULL_LAYERS;
        const cJSON *item = config_member(r, "max_window_layers", pointer);
        if (item)
            field_integer(item, pointer, 0, FIELDS_MAX_INTEGER, &full_layers, r->problems);
    }
    const cJSON *types = config_member(r, "layer_types", pointer);
    if (types) {
        read_layer_types(r, types, pointer, window, out);
        return;
    }
    for (int64_t i = full_layers; i < out->layers; i++)
        out->window[i] = window;
}

/* ---- Sizes ---- */

static void read_sizes(const struct config_reader *r, struct model_config *out)
{
    char pointer[FIELDS_POINTER_BYTES];
    config_integer(r, "hidden_size", 1, MAX_WIDTH, 0, &out->hidden);
    config_integer(r, "intermediate_size", 1, MAX_WIDTH, 0, &out->intermediate);
    config_integer(r, "num_hidden_layers", 1, MODEL_MAX_LAYERS, 0, &out->layers);
    config_integer(r, "num_attention_heads", 1, MAX_HEADS, 0, &out->heads);
    config_integer(r, "vocab_size", 1, MODEL_MAX_VOCAB, 0, &out->vocab);
    if (config_member(r, "max_position_embeddings", pointer))
        config_integer(r, "max_position_embeddings", 1, FIELDS_MAX_INTEGER, 0, &out->max_positions);
    if (out->heads == 0)
        return;

    /* The default of Mistral is 8 and of the Qwen families 32, whatever the heads; a file that
     * relies on it is more likely a mistake. An explicit null means as many as heads, in every
     * family. */
    bool needed = out->family != MODEL_LLAMA &&
                  !cJSON_GetObjectItemCaseSensitive(r->json, "num_key_value_heads");
    config_integer(r, "num_key_value_heads", 1, out->heads, needed ? 0 : out->heads,
                   &out->kv_heads);
    if (out->kv_heads > 0 && out->heads % out->kv_heads != 0) {
        field_pointer(pointer, r->path, "num_key_value_heads");
        problems_add(r->problems, pointer, "is %d but must divide num_attention_heads %d",
                     (int)out->kv_heads, (int)out->heads);
    }

    field_pointer(pointer, r->path, "head_dim");
    const cJSON *head_dim = config_member(r, "head_dim", pointer);
    if (!head_dim && out->family != MODEL_QWEN3 && out->hidden % out->heads != 0) {
        problems_add(r->problems, pointer,
                     "is missing, so num_attention_heads %d must divide hidden_size %d",
                     (int)out->heads, (int)out->hidden);
        return;
    }
    int64_t fallback = out->family == MODEL_QWEN3 ? 128 : out->hidden / out->heads;
    if (!head_dim && fallback == 0)
        return; /* hidden_size is the problem */
    config_integer(r, "head_dim", 2, MAX_HEAD_DIM, fallback, &out->head_dim);
    if (out->head_dim > MAX_HEAD_DIM)
        problems_add(r->problems, pointer,
                     "is missing, so it is hidden_size / num_attention_heads = %d, but it must be "
                     "at most %d",
                     (int)out->head_dim, (int)MAX_HEAD_DIM);
    else if (out->head_dim % 2 != 0)
        problems_add(r->problems, pointer, "is %d but must be even: RoPE turns pairs",
                     (int)out->head_dim);
}

void model_config_parse(const cJSON *json, const char *path, struct model_config *out,
                        struct problems *problems)
{
    *out = (struct model_config){0};
    if (!cJSON_IsObject(json)) {
        problems_add(problems, path, "is %s but must be an object like a config.json",
                     field_type_name(json));
        return;
    }
    struct config_reader r = {json, path, problems};
    char pointer[FIELDS_POINTER_BYTES];
    const cJSON *type = config_member(&r, "model_type", pointer);
    if (!type) {
        problems_add(problems, pointer,
                     "is missing but must be \"llama\", \"mistral\", \"qwen2\" or \"qwen3\"");
        return;
    }
    int family;
    if (!field_enum(type, pointer, family_names, &family, problems))
        return; /* what the other fields would mean is not known */
    out->family = (enum model_family)family;

    read_sizes(&r, out);
    const struct field_range positive = {.least = 0, .most = 1, .open_least = true};
    out->rms_norm_eps = (float)config_number(&r, "rms_norm_eps", positive, 1e-6);
    out->initializer_range = (float)config_number(&r, "initializer_range", positive, 0.02);
    out->tie_embeddings = config_bool(&r, "tie_word_embeddings", false);
    bool bias = (out->family == MODEL_LLAMA || out->family == MODEL_QWEN3) &&
                config_bool(&r, "attention_bias", false);
    out->qkv_bias = out->family == MODEL_QWEN2 || bias;
    out->o_bias = bias;
    out->head_norm = out->family == MODEL_QWEN3;
    rope_parse(&r, out->max_positions, &out->rope);
    read_windows(&r, out);
    refuse_unsupported(&r, out->family);
}

int64_t model_parameters(const struct model_config *m)
{
    int64_t q = m->heads * m->head_dim, kv = m->kv_heads * m->head_dim, h = m->hidden;
    int64_t layer = 2 * h                      /* norms */
                    + (q + 2 * kv) * h + q * h /* q, k, v, o */
                    + 3 * h * m->intermediate; /* gate, up, down */
    if (m->qkv_bias)
        layer += q + 2 * kv;
    if (m->o_bias)
        layer += h;
    if (m->head_norm)
        layer += 2 * m->head_dim;
    return m->layers * layer + h + (m->tie_embeddings ? 1 : 2) * m->vocab * h;
}
