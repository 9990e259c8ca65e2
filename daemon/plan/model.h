/* The shape of a decoder, read from a Hugging Face config.json. Pure: JSON in, struct out. */
#ifndef PLAN_MODEL_H
#define PLAN_MODEL_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/plan/problems.h"
#include "daemon/plan/rope.h"

enum model_family { MODEL_LLAMA, MODEL_MISTRAL, MODEL_QWEN2, MODEL_QWEN3 };

#define MODEL_MAX_LAYERS 512
#define MODEL_MAX_VOCAB ((int64_t)1 << 24)

struct model_config {
    enum model_family family; /* from model_type */
    int64_t hidden;
    int64_t intermediate;
    int64_t layers;
    int64_t heads;
    int64_t kv_heads;
    int64_t head_dim;
    int64_t vocab;
    int64_t added_vocab; /* the last rows of vocab, which the weights do not have: a grown one */
    float rms_norm_eps;
    struct rope rope;
    int64_t max_positions; /* rows a text was trained with; 0: the config does not say */
    float initializer_range;
    bool tie_embeddings;
    bool qkv_bias;  /* Qwen2 always; Llama and Qwen3 by attention_bias */
    bool o_bias;    /* Llama and Qwen3 by attention_bias */
    bool head_norm; /* RMSNorm of each head of q and k before RoPE: Qwen3 */
    /* Sliding window of each layer in rows; 0: full attention. Qwen by layer_types, or
     * use_sliding_window with max_window_layers; Mistral in all layers or none. */
    int64_t window[MODEL_MAX_LAYERS];
};

/* Reads a config.json object. Every field that is missing, of the wrong type, out of range or not
 * supported adds a problem at `path`/field; the config is usable only if none was added. */
void model_config_parse(const cJSON *json, const char *path, struct model_config *out,
                        struct problems *problems);

int64_t model_parameters(const struct model_config *m);

#endif
