#include "daemon/worker/objective/batch.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/philox.h"

/* The times of an evaluation, fixed so that runs compare. */
#define EVALUATION_T_MIN 1e-3f
#define EVALUATION_T_MAX 1.0f

struct err *batch_create(int64_t length, int64_t block_size, int views, struct batch **out)
{
    assert(length % block_size == 0);
    struct batch *b = calloc(1, sizeof *b);
    if (!b)
        return err_no_memory();
    size_t n = (size_t)length, blocks = (size_t)(length / block_size), v = (size_t)views;
    b->length = length;
    b->block_size = block_size;
    b->views = views;
    b->ids = calloc(n, sizeof *b->ids);
    b->supervised = calloc(n, sizeof *b->supervised);
    b->document = calloc(n, sizeof *b->document);
    b->documents = calloc(n, sizeof *b->documents);
    b->t = calloc(blocks * v + 1, sizeof *b->t);
    b->corrupted = calloc(n * v + 1, sizeof *b->corrupted);
    if (!b->ids || !b->supervised || !b->document || !b->documents || !b->t || !b->corrupted) {
        batch_destroy(b);
        return err_no_memory();
    }
    batch_clear(b);
    *out = b;
    return NULL;
}

void batch_destroy(struct batch *b)
{
    if (!b)
        return;
    free(b->corrupted);
    free(b->t);
    free(b->documents);
    free(b->document);
    free(b->supervised);
    free(b->ids);
    free(b);
}

void batch_clear(struct batch *b)
{
    b->n_documents = 0;
    for (int64_t i = 0; i < b->length; i++)
        b->document[i] = -1;
}

void batch_add_document(struct batch *b, int64_t begin, int64_t end)
{
    assert(begin < end && end <= b->length);
    assert(!b->n_documents || b->documents[b->n_documents - 1].end <= begin);
    for (int64_t i = begin; i < end; i++)
        b->document[i] = (int32_t)b->n_documents;
    b->documents[b->n_documents++] = (struct plan_document){begin, end};
}

static float mask_probability(const struct objective_spec *objective, float t)
{
    return objective->type == OBJECTIVE_FAST_DLLM_V2
               ? (1.0f - FAST_DLLM_V2_EPS) * t + FAST_DLLM_V2_EPS
               : t;
}

void batch_corrupt(struct batch *b, const struct objective_spec *objective, uint64_t seed,
                   enum corruption which, uint64_t sample, int64_t begin, int64_t length)
{
    bool training = which == CORRUPTION_TRAINING;
    enum philox_purpose time_of = training ? PHILOX_TIME : PHILOX_EVAL_TIME;
    enum philox_purpose mask_of = training ? PHILOX_MASK : PHILOX_EVAL_MASK;
    bool complementary = objective->type == OBJECTIVE_FAST_DLLM_V2;
    int64_t first_block = begin / b->block_size, blocks = length / b->block_size;
    int64_t all_blocks = b->length / b->block_size;
    for (int v = 0; v < b->views; v++) {
        uint32_t drawn_view = complementary ? 0 : (uint32_t)v;
        float u = philox_uniform(seed, time_of, sample, drawn_view, 0);
        float *t = b->t + v * all_blocks + first_block;
        for (int64_t j = 0; j < blocks; j++) {
            double r = objective->antithetic
                           ? fmod((double)u + (double)j / (double)blocks, 1.0)
                           : philox_uniform(seed, time_of, sample, drawn_view, (uint64_t)j);
            t[j] = objective->t_min + (objective->t_max - objective->t_min) * (float)r;
        }
        uint8_t *corrupted = b->corrupted + v * b->length + begin;
        const uint8_t *supervised = b->supervised + begin;
        for (int64_t i = 0; i < length; i++) {
            float p = mask_probability(objective, t[i / b->block_size]);
            bool masked = philox_uniform(seed, mask_of, sample, drawn_view, (uint64_t)i) < p;
            if (complementary && v == 1)
                masked = !masked;
            corrupted[i] = supervised[i] && masked;
        }
    }
}

/* Row i predicts token i + 1: the next row of the same document, and supervised. */
static bool predicts_next(const struct batch *b, int64_t i)
{
    return i + 1 < b->length && b->document[i] >= 0 && b->document[i] == b->document[i + 1] &&
           b->supervised[i + 1];
}

int64_t batch_denominator(const struct batch *b, const struct objective_spec *objective)
{
    int64_t n = 0;
    for (int64_t i = 0; i < b->length; i++)
        n += objective->type == OBJECTIVE_BLOCK_DIFFUSION
                 ? (b->document[i] >= 0 && b->supervised[i]) * objective->views
                 : predicts_next(b, i);
    return n;
}

void batch_row_ids(const struct batch *b, const struct objective_spec *objective,
                   const struct plan_layout *layout, int32_t *ids)
{
    for (int64_t row = 0; row < layout->n_rows; row++) {
        int stream = layout->stream[row];
        int64_t i = layout->position[row];
        bool masked = stream > 0 && b->corrupted[(stream - 1) * b->length + i];
        ids[row] = masked ? objective->mask_token_id : b->ids[i];
    }
}

/* The token that (stream, row i) is asked for, and its weight; -1 if it carries no loss. */
static int32_t label_of(const struct batch *b, const struct objective_spec *objective, int stream,
                        int64_t i, float *weight)
{
    *weight = 1.0f;
    if (objective->type == OBJECTIVE_AUTOREGRESSIVE)
        return predicts_next(b, i) ? b->ids[i + 1] : -1;
    int64_t target = i;
    if (objective->type == OBJECTIVE_FAST_DLLM_V2) {
        if (!predicts_next(b, i))
            return -1;
        target = i + 1;
    }
    int view = stream - 1;
    if (b->document[target] < 0 || !b->corrupted[view * b->length + target])
        return -1;
    if (objective->loss_weighting == LOSS_INVERSE_T) {
        int64_t blocks = b->length / b->block_size;
        float t = b->t[view * blocks + target / b->block_size];
        *weight = 1.0f / mask_probability(objective, t);
    }
    return b->ids[target];
}

int64_t batch_loss_rows(const struct batch *b, const struct objective_spec *objective,
                        const struct plan_layout *layout, int32_t *rows, int32_t *labels,
                        float *weights)
{
    int64_t n = 0;
    for (int64_t row = 0; row < layout->n_rows; row++) {
        if (!layout->carries_loss[row])
            continue;
        int32_t label =
            label_of(b, objective, layout->stream[row], layout->position[row], &weights[n]);
        if (label < 0)
            continue;
        rows[n] = (int32_t)row;
        labels[n++] = label;
    }
    return n;
}

struct objective_spec objective_for_evaluation(const struct objective_spec *training)
{
    struct objective_spec o = *training;
    if (o.type == OBJECTIVE_AUTOREGRESSIVE)
        return o;
    o.views = 1;
    o.loss_weighting = LOSS_INVERSE_T;
    o.t_min = EVALUATION_T_MIN;
    o.t_max = EVALUATION_T_MAX;
    o.antithetic = true;
    return o;
}
