/* Rotary position embedding (Su et al., 2021) and the ways in which models stretch it over longer
 * texts: how fast each pair of a head turns with position. Pure. */
#ifndef PLAN_ROPE_H
#define PLAN_ROPE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/plan/config_reader.h"

enum rope_type {
    ROPE_DEFAULT,
    ROPE_LINEAR, /* positions divided by a factor (Chen et al., 2023) */
    ROPE_LLAMA3, /* slow pairs by a factor, fast ones not at all, a ramp between (Llama 3.1) */
    ROPE_YARN,   /* likewise, and the softmax made sharper (Peng et al., 2023) */
};

/* Fields of other types are 0. */
struct rope {
    enum rope_type type;
    double theta;              /* the base */
    double factor;             /* linear, llama3, yarn: how much slower the slow pairs turn */
    double original_positions; /* llama3, yarn: rows of the model before it was stretched */
    /* llama3: pairs that turn less often than low over original_positions are slow, more often than
     * high fast. */
    double low_freq_factor, high_freq_factor;
    /* yarn: pairs that turn less often than beta_slow over original_positions are slow, more often
     * than beta_fast fast; truncate: the ramp between begins and ends at whole pairs. */
    double beta_slow, beta_fast;
    bool truncate;
    double attention_factor; /* yarn: cosines and sines are multiplied by it */
};

/* rope_theta with rope_scaling (transformers 4) or rope_parameters (5), nested by layer type where
 * all types agree. max_positions: max_position_embeddings, 0 where the config has none. */
void rope_parse(const struct config_reader *config, int64_t max_positions, struct rope *out);

/* inv_freq [head_dim / 2]: radians a position, of each pair. */
void rope_frequencies(const struct rope *rope, int64_t head_dim, float *inv_freq);

/* What scores are multiplied by because of the rotation: q and k both carry the attention factor.
 */
double rope_score_scale(const struct rope *rope);

#endif
