/* config.json: read, or refused with problems; a good one has frequencies and tensors. */
#include <assert.h>
#include <math.h>

#include "daemon/base/json.h"
#include "daemon/plan/tensors.h"
#include "tests/fuzz/fuzz.h"

const char *const fuzz_words[] = {"\"model_type\":",
                                  "\"llama\"",
                                  "\"mistral\"",
                                  "\"qwen2\"",
                                  "\"qwen3\"",
                                  "\"hidden_size\":",
                                  "\"intermediate_size\":",
                                  "\"num_hidden_layers\":",
                                  "\"num_attention_heads\":",
                                  "\"num_key_value_heads\":",
                                  "\"head_dim\":",
                                  "\"vocab_size\":",
                                  "\"rms_norm_eps\":",
                                  "\"rope_theta\":",
                                  "\"rope_scaling\":",
                                  "\"rope_parameters\":",
                                  "\"rope_type\":",
                                  "\"type\":",
                                  "\"default\"",
                                  "\"linear\"",
                                  "\"llama3\"",
                                  "\"yarn\"",
                                  "\"factor\":",
                                  "\"beta_fast\":",
                                  "\"beta_slow\":",
                                  "\"mscale\":",
                                  "\"mscale_all_dim\":",
                                  "\"attention_factor\":",
                                  "\"truncate\":",
                                  "\"low_freq_factor\":",
                                  "\"high_freq_factor\":",
                                  "\"original_max_position_embeddings\":",
                                  "\"max_position_embeddings\":",
                                  "\"sliding_window\":",
                                  "\"use_sliding_window\":",
                                  "\"max_window_layers\":",
                                  "\"layer_types\":",
                                  "\"full_attention\"",
                                  "\"sliding_attention\"",
                                  "\"full_attention\":",
                                  "\"sliding_attention\":",
                                  "\"tie_word_embeddings\":",
                                  "\"attention_bias\":",
                                  "\"hidden_act\":",
                                  "\"silu\"",
                                  "\"quantization_config\":",
                                  "\"partial_rotary_factor\":",
                                  "true",
                                  "false",
                                  "null",
                                  "{",
                                  "}",
                                  "[",
                                  "]",
                                  ",",
                                  "{}",
                                  "[]",
                                  "1e6",
                                  NULL};

#define MAX_HEAD_DIM 4096

static void use(const struct model_config *m)
{
    static float frequencies[MAX_HEAD_DIM / 2];
    struct model_tensors_walk walk = {0};
    struct model_tensor tensor;
    int64_t parameters = 0;
    assert(m->head_dim >= 2 && m->head_dim <= MAX_HEAD_DIM && m->layers <= MODEL_MAX_LAYERS);
    rope_frequencies(&m->rope, m->head_dim, frequencies);
    for (int64_t i = 0; i < m->head_dim / 2; i++)
        assert(!isnan(frequencies[i]));
    assert(rope_score_scale(&m->rope) > 0);
    while (model_tensors_next(m, &walk, &tensor))
        parameters += tensor.shape[0] * (tensor.dims == 2 ? tensor.shape[1] : 1);
    assert(parameters == model_parameters(m));
}

void fuzz_one(const uint8_t *bytes, size_t n)
{
    cJSON *json;
    struct model_config model;
    struct problems problems = {0};
    struct err *e = json_parse((const char *)bytes, n, &json);
    if (e) {
        err_free(e);
        return;
    }
    model_config_parse(json, "/model/config", &model, &problems);
    if (problems_count(&problems) == 0)
        use(&model);
    problems_free(&problems);
    cJSON_Delete(json);
}
