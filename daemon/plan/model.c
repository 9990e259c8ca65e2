/* config.json of the Llama, Qwen2 and Qwen3 families.
 *
 * Names and defaults are those of the transformers library, so that a published config.json means
 * here what it means there. Two kinds of field are not read: those that do not touch the
 * mathematics (ignored), and those that would change it in a way that is not built (refused by
 * name: training something else than what the file describes would be worse than not training).
 */
#include "daemon/plan/model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "daemon/plan/fields.h"

#define MAX_WIDTH ((int64_t)1 << 20) /* of hidden, intermediate; keeps every product in 64 bits */
#define MAX_HEADS ((int64_t)1 << 12)
#define MAX_HEAD_DIM ((int64_t)1 << 12)
#define MAX_VOCAB ((int64_t)1 << 24)
#define MAX_WINDOW ((int64_t)1 << 31)

struct reader {
    const cJSON *json;
    const char *path;
    struct problems *problems;
};

/* A member that is there and not null; its pointer goes to `pointer`. */
static const cJSON *member(const struct reader *r, const char *key,
                           char pointer[static FIELDS_POINTER_BYTES])
{
    field_pointer(pointer, r->path, key);
    const cJSON *item = field_get(r->json, r->path, key, r->problems);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

/* fallback 0: the field has none. */
static void read_integer(const struct reader *r, const char *key, int64_t least, int64_t most,
                         int64_t fallback, int64_t *out)
{
    char pointer[FIELDS_POINTER_BYTES];
    const cJSON *item = member(r, key, pointer);
    if (item)
        field_integer(item, pointer, least, most, out, r->problems);
    else if (fallback)
        *out = fallback;
    else
        problems_add(r->problems, pointer, "is missing but must be a positive integer");
}

static double read_number(const struct reader *r, const char *key, struct field_range range,
                          double fallback)
{
    char pointer[FIELDS_POINTER_BYTES];
    double value = fallback;
    const cJSON *item = member(r, key, pointer);
    if (item)
        field_number(item, pointer, range, &value, r->problems);
    return value;
}

static bool read_bool(const struct reader *r, const char *key, bool fallback)
{
    char pointer[FIELDS_POINTER_BYTES];
    bool value = fallback;
    const cJSON *item = member(r, key, pointer);
    if (item)
        field_bool(item, pointer, &value, r->problems);
    return value;
}

/* ---- What is refused ---- */

static void refuse_unless_string(const struct reader *r, const char *key, const char *only)
{
    char pointer[FIELDS_POINTER_BYTES];
    const cJSON *item = member(r, key, pointer);
    if (item && (!cJSON_IsString(item) || strcmp(item->valuestring, only) != 0))
        problems_add(r->problems, pointer, "is not supported: only \"%s\" is", only);
}

static void refuse_unless_number(const struct reader *r, const char *key, double only)
{
    char pointer[FIELDS_POINTER_BYTES];
    const cJSON *item = member(r, key, pointer);
    if (item && (!cJSON_IsNumber(item) || item->valuedouble != only))
        problems_add(r->problems, pointer, "is not supported: only %g is", only);
}

static void refuse_true(const struct reader *r, const char *key)
{
    char pointer[FIELDS_POINTER_BYTES];
    const cJSON *item = member(r, key, pointer);
    if (item && !cJSON_IsFalse(item))
        problems_add(r->problems, pointer, "is not supported: only false is");
}

static void refuse_present(const struct reader *r, const char *key)
{
    char pointer[FIELDS_POINTER_BYTES];
    if (member(r, key, pointer))
        problems_add(r->problems, pointer, "is not supported: it must be null or left out");
}

/* rope_scaling (transformers 4) or rope_parameters (5): only the plain rotation is built. */
static void refuse_rope_variants(const struct reader *rope)
{
    static const char *const plain[] = {"rope_type", "type", "rope_theta", "partial_rotary_factor"};
    size_t before = problems_count(rope->problems);
    refuse_unless_string(rope, "rope_type", "default");
    refuse_unless_string(rope, "type", "default");
    refuse_unless_number(rope, "partial_rotary_factor", 1.0);
    if (problems_count(rope->problems) > before)
        return; /* the other fields belong to the variant just named */
    for (const cJSON *item = rope->json->child; item; item = item->next) {
        bool known = cJSON_IsNull(item);
        for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
            known = known || strcmp(item->string, plain[i]) == 0;
        if (known)
            continue;
        char pointer[FIELDS_POINTER_BYTES];
        field_pointer(pointer, rope->path, item->string);
        problems_add(rope->problems, pointer,
                     "is not supported: only the default rotation with rope_theta is");
    }
}

static void refuse_unsupported(const struct reader *r, enum model_family family)
{
    refuse_unless_string(r, "hidden_act", "silu");
    refuse_unless_number(r, "attention_dropout", 0.0);
    refuse_unless_number(r, "partial_rotary_factor", 1.0);
    refuse_true(r, "mlp_bias");
    refuse_present(r, "attn_logit_softcapping");
    refuse_present(r, "final_logit_softcapping");
    refuse_present(r, "quantization_config");
    if (family == MODEL_QWEN2)
        refuse_true(r, "attention_bias");
}

/* ---- RoPE and windows ---- */

static void read_rope(const struct reader *r, struct model_config *out)
{
    const struct field_range range = {.least = 0, .most = INFINITY, .open_least = true};
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    double top = read_number(r, "rope_theta", range, 0), theta = top;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char pointer[FIELDS_POINTER_BYTES];
        const cJSON *item = member(r, keys[i], pointer);
        if (!item)
            continue;
        if (!cJSON_IsObject(item)) {
            problems_add(r->problems, pointer, "is %s but must be an object or null",
                         field_type_name(item));
            continue;
        }
        struct reader rope = {item, pointer, r->problems};
        refuse_rope_variants(&rope);
        theta = read_number(&rope, "rope_theta", range, theta);
        if (top != 0 && theta != top)
            problems_add(r->problems, pointer,
                         "has a rope_theta of %g where the config's own rope_theta is %g: they "
                         "must agree",
                         theta, top);
    }
    out->rope_theta = theta != 0 ? theta : 10000.0;
}

static void read_layer_types(const struct reader *r, const cJSON *types, const char *pointer,
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
        if (field_enum(item, at, names, &type, r->problems) && type == 1) {
            if (out->family == MODEL_LLAMA)
                problems_add(r->problems, at,
                             "is \"sliding_attention\", which the llama family does not have");
            else if (window == 0)
                problems_add(r->problems, at,
                             "is \"sliding_attention\", which needs use_sliding_window true and "
                             "a sliding_window");
            out->window[layer] = window;
        }
        layer++;
    }
}

static void read_windows(const struct reader *r, struct model_config *out)
{
    char pointer[FIELDS_POINTER_BYTES];
    int64_t window = 0, full_layers = 28;
    memset(out->window, 0, sizeof out->window);
    if (out->family != MODEL_LLAMA && read_bool(r, "use_sliding_window", false)) {
        const cJSON *item = member(r, "sliding_window", pointer);
        if (item)
            field_integer(item, pointer, 1, MAX_WINDOW, &window, r->problems);
        else
            problems_add(r->problems, pointer,
                         "is missing but use_sliding_window needs it: a positive number of rows");
        item = member(r, "max_window_layers", pointer);
        if (item)
            field_integer(item, pointer, 0, FIELDS_MAX_INTEGER, &full_layers, r->problems);
    }
    const cJSON *types = member(r, "layer_types", pointer);
    if (types) {
        read_layer_types(r, types, pointer, window, out);
        return;
    }
    for (int64_t i = full_layers; i < out->layers; i++)
        out->window[i] = window;
}

/* ---- Sizes ---- */

static void read_sizes(const struct reader *r, struct model_config *out)
{
    read_integer(r, "hidden_size", 1, MAX_WIDTH, 0, &out->hidden);
    read_integer(r, "intermediate_size", 1, MAX_WIDTH, 0, &out->intermediate);
    read_integer(r, "num_hidden_layers", 1, MODEL_MAX_LAYERS, 0, &out->layers);
    read_integer(r, "num_attention_heads", 1, MAX_HEADS, 0, &out->heads);
    read_integer(r, "vocab_size", 1, MAX_VOCAB, 0, &out->vocab);
    if (out->heads == 0)
        return;

    /* The Qwen families' default is 32 whatever the heads; a file that relies on it is more likely
     * a mistake. An explicit null means as many as heads, in every family. */
    bool needed = out->family != MODEL_LLAMA &&
                  !cJSON_GetObjectItemCaseSensitive(r->json, "num_key_value_heads");
    read_integer(r, "num_key_value_heads", 1, out->heads, needed ? 0 : out->heads, &out->kv_heads);
    char pointer[FIELDS_POINTER_BYTES];
    if (out->kv_heads > 0 && out->heads % out->kv_heads != 0) {
        field_pointer(pointer, r->path, "num_key_value_heads");
        problems_add(r->problems, pointer, "is %d but must divide num_attention_heads %d",
                     (int)out->kv_heads, (int)out->heads);
    }

    field_pointer(pointer, r->path, "head_dim");
    const cJSON *head_dim = member(r, "head_dim", pointer);
    if (!head_dim && out->family != MODEL_QWEN3 && out->hidden % out->heads != 0) {
        problems_add(r->problems, pointer,
                     "is missing, so num_attention_heads %d must divide hidden_size %d",
                     (int)out->heads, (int)out->hidden);
        return;
    }
    int64_t fallback = out->family == MODEL_QWEN3 ? 128 : out->hidden / out->heads;
    if (!head_dim && fallback == 0)
        return; /* hidden_size is the problem */
    read_integer(r, "head_dim", 2, MAX_HEAD_DIM, fallback, &out->head_dim);
    if (out->head_dim % 2 != 0)
        problems_add(r->problems, pointer, "is %d but must be even: RoPE turns pairs",
                     (int)out->head_dim);
}

void model_config_parse(const cJSON *json, const char *path, struct model_config *out,
                        struct problems *problems)
{
    static const char *const families[] = {
        [MODEL_LLAMA] = "llama", [MODEL_QWEN2] = "qwen2", [MODEL_QWEN3] = "qwen3", NULL};
    *out = (struct model_config){0};
    if (!cJSON_IsObject(json)) {
        problems_add(problems, path, "is %s but must be an object like a config.json",
                     field_type_name(json));
        return;
    }
    struct reader r = {json, path, problems};
    char pointer[FIELDS_POINTER_BYTES];
    const cJSON *type = member(&r, "model_type", pointer);
    if (!type) {
        problems_add(problems, pointer, "is missing but must be \"llama\", \"qwen2\" or \"qwen3\"");
        return;
    }
    int family;
    if (!field_enum(type, pointer, families, &family, problems))
        return; /* what the other fields would mean is not known */
    out->family = (enum model_family)family;

    read_sizes(&r, out);
    const struct field_range positive = {.least = 0, .most = 1, .open_least = true};
    out->rms_norm_eps = (float)read_number(&r, "rms_norm_eps", positive, 1e-6);
    out->initializer_range = (float)read_number(&r, "initializer_range", positive, 0.02);
    out->tie_embeddings = read_bool(&r, "tie_word_embeddings", false);
    bool bias = out->family != MODEL_QWEN2 && read_bool(&r, "attention_bias", false);
    out->qkv_bias = out->family == MODEL_QWEN2 || bias;
    out->o_bias = bias;
    out->head_norm = out->family == MODEL_QWEN3;
    read_rope(&r, out);
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
