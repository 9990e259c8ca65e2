/* Corruption and loss rows against the mathematics, written out slowly. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/philox.h"
#include "daemon/worker/objective/batch.h"

#define MASK 99
#define B 8

static struct objective_spec objective(enum objective_type type, int views)
{
    return (struct objective_spec){
        .type = type,
        .block_size = type == OBJECTIVE_AUTOREGRESSIVE ? 1 : B,
        .mask_token_id = MASK,
        .views = views,
        .loss_weighting = type == OBJECTIVE_BLOCK_DIFFUSION ? LOSS_INVERSE_T : LOSS_UNIT,
        .t_min = 0.001f,
        .t_max = 1.0f,
        .antithetic = true,
    };
}

/* Two documents, the second starting inside a block; the last five rows are padding; every fifth
 * token is unsupervised. */
static struct batch *make(const struct objective_spec *o, int64_t length)
{
    struct batch *b;
    assert_null(batch_create(length, o->block_size, o->views, &b));
    batch_add_document(b, 0, length / 2 + 3);
    batch_add_document(b, length / 2 + 3, length - 5);
    for (int64_t i = 0; i < length; i++) {
        b->ids[i] = (int32_t)(i % 90);
        b->supervised[i] = i < length - 5 && i % 5 != 0;
    }
    return b;
}

static struct plan_layout *whole(const struct batch *b, const struct objective_spec *o)
{
    struct plan_shape shape = {
        .mode = MODE_NONE,
        .causal = o->type == OBJECTIVE_AUTOREGRESSIVE,
        .degree = 1,
        .views = o->views,
        .length = b->length,
        .block_size = o->block_size,
    };
    int64_t window = 0;
    struct plan_layout *layout;
    assert_null(plan_layout_create(&shape, 0, b->documents, b->n_documents, &window, 1, &layout));
    return layout;
}

static void test_same_draw_wherever_a_sequence_lies(void **state)
{
    (void)state;
    struct objective_spec o = objective(OBJECTIVE_BLOCK_DIFFUSION, 2);
    struct batch *one, *two;
    assert_null(batch_create(64, B, 2, &one));
    assert_null(batch_create(128, B, 2, &two));
    memset(one->supervised, 1, 64);
    memset(two->supervised, 1, 128);
    batch_corrupt(one, &o, 7, CORRUPTION_TRAINING, 41, 0, 64);
    batch_corrupt(two, &o, 7, CORRUPTION_TRAINING, 40, 0, 64);
    batch_corrupt(two, &o, 7, CORRUPTION_TRAINING, 41, 64, 64);
    for (int v = 0; v < 2; v++) {
        assert_memory_equal(one->corrupted + v * 64, two->corrupted + v * 128 + 64, 64);
        assert_memory_equal(one->t + v * 8, two->t + v * 16 + 8, 8 * sizeof(float));
    }
    assert_memory_not_equal(one->corrupted, one->corrupted + 64, 64); /* views differ */
    assert_memory_not_equal(two->corrupted, two->corrupted + 64, 64); /* samples differ */
    batch_corrupt(two, &o, 8, CORRUPTION_TRAINING, 41, 64, 64);
    assert_memory_not_equal(one->corrupted, two->corrupted + 64, 64); /* seeds differ */
    batch_corrupt(two, &o, 7, CORRUPTION_EVALUATION, 41, 64, 64);
    assert_memory_not_equal(one->corrupted, two->corrupted + 64, 64); /* purposes differ */
    batch_destroy(one);
    batch_destroy(two);
}

static void test_antithetic_times_are_stratified(void **state)
{
    (void)state;
    struct objective_spec o = objective(OBJECTIVE_BLOCK_DIFFUSION, 1);
    o.t_min = 0.0f;
    struct batch *b;
    int64_t blocks = 50;
    assert_null(batch_create(blocks * B, B, 1, &b));
    for (uint64_t sample = 0; sample < 20; sample++) {
        batch_corrupt(b, &o, 3, CORRUPTION_TRAINING, sample, 0, b->length);
        int seen[50] = {0};
        float u = b->t[0] * (float)blocks;
        float offset = u - floorf(u);
        for (int64_t j = 0; j < blocks; j++) {
            int stratum = (int)lrintf(b->t[j] * (float)blocks - offset);
            assert_in_range(stratum, 0, blocks - 1);
            seen[stratum]++;
        }
        for (int64_t j = 0; j < blocks; j++)
            assert_int_equal(seen[j], 1);
    }
    batch_destroy(b);
}

static void test_masked_share_is_t(void **state)
{
    (void)state;
    struct objective_spec o = objective(OBJECTIVE_BLOCK_DIFFUSION, 1);
    o.t_min = o.t_max = 0.3f;
    struct batch *b;
    assert_null(batch_create(B * 20000, B, 1, &b));
    memset(b->supervised, 1, (size_t)b->length);
    batch_corrupt(b, &o, 11, CORRUPTION_TRAINING, 0, 0, b->length);
    int64_t masked = 0;
    for (int64_t i = 0; i < b->length; i++)
        masked += b->corrupted[i];
    double share = (double)masked / (double)b->length;
    assert_true(fabs(share - 0.3) < 5 * sqrt(0.3 * 0.7 / (double)b->length));
    batch_destroy(b);
}

/* For each loss row: what the table says of (stream, position), and every such pair just once. */
static void check_rows(const struct objective_spec *o, const struct batch *b)
{
    struct plan_layout *layout = whole(b, o);
    size_t n_rows = (size_t)layout->n_rows;
    int32_t *rows = malloc(n_rows * sizeof *rows), *labels = malloc(n_rows * sizeof *labels);
    int32_t *ids = malloc(n_rows * sizeof *ids);
    float *weights = malloc(n_rows * sizeof *weights);
    int64_t n = batch_loss_rows(b, o, layout, rows, labels, weights), at = 0;
    batch_row_ids(b, o, layout, ids);
    for (int64_t row = 0; row < layout->n_rows; row++) {
        int stream = layout->stream[row];
        int64_t i = layout->position[row], next = i + 1;
        bool has_next = next < b->length && b->document[i] >= 0 &&
                        b->document[next] == b->document[i] && b->supervised[next];
        bool masked_here = stream && b->corrupted[(stream - 1) * b->length + i];
        assert_int_equal(ids[row], masked_here ? MASK : b->ids[i]);
        int32_t label = -1;
        double weight = 1;
        if (o->type == OBJECTIVE_AUTOREGRESSIVE) {
            if (has_next)
                label = b->ids[next];
        } else if (o->type == OBJECTIVE_FAST_DLLM_V2) {
            if (stream && has_next && b->corrupted[(stream - 1) * b->length + next])
                label = b->ids[next];
        } else if (masked_here) {
            label = b->ids[i];
            weight = 1.0 / (double)b->t[(stream - 1) * (b->length / B) + i / B];
        }
        if (label < 0)
            continue;
        assert_true(at < n);
        assert_int_equal(rows[at], row);
        assert_int_equal(labels[at], label);
        assert_true(fabs(weights[at] - weight) <= 1e-6 * weight);
        at++;
    }
    assert_int_equal(at, n);
    free(weights);
    free(ids);
    free(labels);
    free(rows);
    plan_layout_free(layout);
}

static void test_block_diffusion_rows(void **state)
{
    (void)state;
    struct objective_spec o = objective(OBJECTIVE_BLOCK_DIFFUSION, 2);
    struct batch *b = make(&o, 80);
    batch_corrupt(b, &o, 1, CORRUPTION_TRAINING, 0, 0, 80);
    check_rows(&o, b);
    assert_int_equal(batch_denominator(b, &o), 60 * 2);
    batch_destroy(b);
}

static void test_fast_dllm_v2_rows(void **state)
{
    (void)state;
    struct objective_spec o = objective(OBJECTIVE_FAST_DLLM_V2, 2);
    struct batch *b = make(&o, 80);
    batch_corrupt(b, &o, 1, CORRUPTION_TRAINING, 0, 0, 80);
    check_rows(&o, b);
    for (int64_t i = 0; i < 80; i++) /* complementary: exactly one view masks a supervised token */
        assert_int_equal(b->corrupted[i] + b->corrupted[80 + i], b->supervised[i]);
    /* 60 supervised tokens; of the two documents' first rows (0 and 43) 43 is supervised, and no
     * row predicts it */
    assert_int_equal(batch_denominator(b, &o), 59);
    batch_destroy(b);
}

static void test_autoregressive_rows(void **state)
{
    (void)state;
    struct objective_spec o = objective(OBJECTIVE_AUTOREGRESSIVE, 0);
    struct batch *b = make(&o, 80);
    check_rows(&o, b);
    assert_int_equal(batch_denominator(b, &o), 59);
    batch_destroy(b);
}

static void test_evaluation_ignores_training_weights(void **state)
{
    (void)state;
    struct objective_spec o = objective(OBJECTIVE_BLOCK_DIFFUSION, 3);
    o.loss_weighting = LOSS_UNIT;
    o.t_min = 0.4f;
    o.t_max = 0.5f;
    o.antithetic = false;
    struct objective_spec e = objective_for_evaluation(&o);
    assert_int_equal(e.views, 1);
    assert_int_equal(e.loss_weighting, LOSS_INVERSE_T);
    assert_true(e.antithetic && e.t_min < 0.01f && e.t_max == 1.0f);
    assert_int_equal(e.block_size, o.block_size);
    assert_int_equal(e.mask_token_id, MASK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_draw_wherever_a_sequence_lies),
        cmocka_unit_test(test_antithetic_times_are_stratified),
        cmocka_unit_test(test_masked_share_is_t),
        cmocka_unit_test(test_block_diffusion_rows),
        cmocka_unit_test(test_fast_dllm_v2_rows),
        cmocka_unit_test(test_autoregressive_rows),
        cmocka_unit_test(test_evaluation_ignores_training_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
