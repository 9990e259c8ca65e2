/* Estimates against sums made by hand, and the planner's own choice. */
#include "plan_cases.h"

#include <stdio.h>

#include "daemon/plan/layout.h"

static struct job_spec small_spec(void)
{
    struct job_spec spec = {0};
    spec.model.config = (struct model_config){.family = MODEL_LLAMA,
                                              .hidden = 8,
                                              .intermediate = 16,
                                              .layers = 2,
                                              .heads = 2,
                                              .kv_heads = 1,
                                              .head_dim = 4,
                                              .vocab = 32,
                                              .tie_embeddings = true};
    spec.objective.type = OBJECTIVE_BLOCK_DIFFUSION;
    spec.objective.block_size = 4;
    spec.objective.views = 1;
    spec.data.sequence_length = 32;
    spec.parallel.mode = MODE_CSBP;
    spec.parallel.degree = 2;
    spec.parallel.data = 1;
    spec.batch.sequences = 2;
    spec.batch.micro_sequences = 1;
    spec.recompute = RECOMPUTE_LAYER;
    return spec;
}

static void estimates_as_summed_by_hand(void **state)
{
    (void)state;
    struct job_spec spec = small_spec();
    struct plan_estimate e;
    must(plan_estimate(&spec, MODE_CSBP, 2, 0, 4, &e));
    /* 2 layers x (2 norms of 8, 16 x 8 + 8 x 8 attention, 3 x 8 x 16) + 8 + 32 x 8 = 1448 */
    assert_int_equal(e.weights_bytes, 1448 * 4);
    assert_int_equal(e.gradients_bytes, 1448 * 4);
    assert_int_equal(e.optimizer_bytes, 724 * 8 + 1448 * 4);
    /* 32 rows: 16 corrupted, 16 clean; 112 numbers and 7 statistics each */
    assert_int_equal(e.activations_bytes,
                     32 * (112 * 4 + 7 * 4) + 3 * 32 * 8 * 4 + 32 * (112 * 4 + 2 * 4));
    /* 32 rows of 8 numbers as keys, gradients and scratch; 16 packed */
    assert_int_equal(e.exchange_bytes, 3 * 32 * 8 * 4 + 16 * 8 * 4);
    assert_int_equal(e.loss_bytes, 4 * 16 * 8 * 4 + 16 * 32 * 4);
    assert_int_equal(e.checkpoint_bytes, 724 * 12);
    assert_int_equal(e.total_bytes, 63744 + 724 * 12);
    /* 16 rows of 32 bytes: two layers, the first again, and two layers of gradients */
    assert_int_equal(e.attention_wire_bytes, 16 * 32 * (2 + 1 + 2));
    assert_int_equal(e.step_wire_bytes, 724 * (4 + 4));
    /* Blocks 0, 1, 6, 7 of both streams see 1, 2, 7, 8 blocks, in two layers. */
    assert_int_equal(e.visible_pairs, 2 * 2 * (4 * 4 * (1 + 2 + 7 + 8)));
}

static void estimates_follow_the_spec(void **state)
{
    (void)state;
    struct job_spec spec = small_spec();
    struct plan_estimate e, other;
    must(plan_estimate(&spec, MODE_CSBP, 2, 0, 4, &e));

    /* Two sequences at once: twice the work and traffic, not four times. */
    spec.batch.micro_sequences = 2;
    must(plan_estimate(&spec, MODE_NONE, 1, 0, 4, &other));
    assert_int_equal(other.visible_pairs, 2 * 2 * 1152);
    assert_int_equal(other.attention_wire_bytes, 0);
    assert_int_equal(other.exchange_bytes, 0);
    assert_int_equal(other.step_wire_bytes, 0);
    spec.batch.micro_sequences = 1;

    /* bf16: half the weights and activations, master weights in the optimizer; gradients of
     * weights, and of queries, keys and values between norm and attention, in fp32. */
    must(plan_estimate(&spec, MODE_CSBP, 2, 0, 2, &other));
    assert_int_equal(other.weights_bytes, 1448 * 2);
    assert_int_equal(other.gradients_bytes, 1448 * 4);
    assert_int_equal(other.optimizer_bytes, 724 * 12 + 1448 * 4);
    assert_int_equal(other.activations_bytes,
                     32 * (112 * 2 + 7 * 4) + 3 * 32 * 8 * 2 + 32 * (96 * 2 + 16 * 4 + 2 * 4));
    assert_int_equal(other.exchange_bytes, 32 * 8 * 2 + 2 * 32 * 8 * 4 + 16 * 8 * (2 + 4));
    assert_int_equal(other.loss_bytes, 4 * 16 * 8 * 2 + 16 * 32 * 2);
    assert_int_equal(other.attention_wire_bytes, 16 * (16 * (2 + 1) + 32 * 2));
    assert_int_equal(other.step_wire_bytes, 724 * (4 + 2));

    /* Nothing recomputed: a working set and a buffer for each layer, keys gathered once. */
    spec.recompute = RECOMPUTE_NONE;
    must(plan_estimate(&spec, MODE_CSBP, 2, 0, 4, &other));
    assert_int_equal(other.activations_bytes - e.activations_bytes, 32 * (112 * 4 + 7 * 4));
    assert_int_equal(other.exchange_bytes - e.exchange_bytes, 32 * 8 * 4);
    assert_int_equal(other.attention_wire_bytes, 16 * 32 * (2 + 2));

    /* Replicas share the optimizer. */
    spec.parallel.data = 2;
    must(plan_estimate(&spec, MODE_CSBP, 2, 0, 4, &other));
    assert_int_equal(other.optimizer_bytes, 362 * 8 + 1448 * 4);
    assert_int_equal(other.step_wire_bytes, 3 * 362 * (4 + 4));

    /* An impossible shape is named. */
    struct err *error = plan_estimate(&spec, MODE_CP, 17, 0, 4, &other);
    assert_non_null(error);
    assert_non_null(strstr(err_message(error), "data.sequence_length 32 is less than"));
    err_free(error);
}

static void saturates(void **state)
{
    (void)state;
    struct job_spec spec = small_spec();
    struct plan_estimate e;
    spec.model.config.vocab = (int64_t)1 << 58;
    spec.model.config.intermediate = (int64_t)1 << 55;
    must(plan_estimate(&spec, MODE_CSBP, 2, 0, 4, &e));
    assert_true(e.activations_bytes == SIZE_MAX);
    assert_true(e.loss_bytes == SIZE_MAX);
    assert_true(e.total_bytes == SIZE_MAX);
}

/* What the estimate counts is what the layouts move, and every gradient row that leaves a rank
 * arrives at another. */
static void counts_the_traffic_of_the_layouts(void **state)
{
    (void)state;
    for (int degree = 1; degree <= 4; degree++)
        for (int mode = MODE_BP; mode <= MODE_CSBP; mode++)
            for (int64_t window = 0; window < 40; window += 13) {
                struct job_spec spec = small_spec();
                spec.recompute = RECOMPUTE_NONE;
                spec.model.config.window[1] = window;
                spec.data.sequence_length = 36;
                struct plan_case c = {.shape = {mode, false, degree, 1, 36, 4},
                                      .documents = {{0, 36}},
                                      .n_documents = 1};
                int kinds[MODEL_MAX_LAYERS];
                int64_t windows[MODEL_MAX_LAYERS], rows = 0, pairs = 0, bytes = 0, worked = 0;
                c.n_kinds = plan_windows(&spec.model.config, windows, kinds);
                memcpy(c.windows, windows, (size_t)c.n_kinds * sizeof *windows);
                assert_int_equal(c.n_kinds, window ? 2 : 1);
                struct plan_layout **all = make_layouts(&c);
                for (int r = 0; r < degree; r++) {
                    struct plan_estimate e;
                    must(plan_estimate(&spec, mode, degree, r, 4, &e));
                    bytes += e.attention_wire_bytes;
                    worked += e.visible_pairs;
                    for (int layer = 0; layer < 2; layer++) {
                        rows += all[r]->kinds[kinds[layer]].wire_rows;
                        pairs += plan_visible_pairs(all[r], kinds[layer]);
                    }
                }
                assert_int_equal(bytes, 2 * rows * 32);
                assert_int_equal(worked, pairs);
                free_layouts(&c, all);
            }
}

/* The closed form against the walk over all rows. */
static void sums_pairs_as_the_rows_do(void **state)
{
    (void)state;
    for (uint64_t number = 0; number < 4000; number++) {
        struct plan_case c = random_case(number, (enum parallel_mode)(number % 4));
        struct plan_layout *layout;
        int rank = (int)(number % (uint64_t)c.shape.degree);
        must(plan_layout_create(&c.shape, rank, c.documents, c.n_documents, c.windows, c.n_kinds,
                                &layout));
        for (int kind = 0; kind < c.n_kinds; kind++)
            if (plan_runs_pairs(&c.shape, layout->runs, layout->n_runs, c.documents, c.n_documents,
                                c.windows[kind]) != plan_visible_pairs(layout, kind))
                fail_msg("case %llu, kind %d", (unsigned long long)number, kind);
        plan_layout_free(layout);
    }
}

/* The largest shape there is: nothing walks over its rows. */
static void estimates_what_is_large(void **state)
{
    (void)state;
    struct job_spec spec = small_spec();
    struct plan_estimate e[8];
    const int64_t length = (int64_t)1 << 26;
    spec.data.sequence_length = length;
    spec.objective.block_size = 1;
    spec.objective.views = 16;
    int64_t pairs = 0, rows = 0;
    must(plan_estimates(&spec, MODE_CSBP, 8, 4, e));
    for (int r = 0; r < 8; r++) {
        struct plan_estimate one;
        must(plan_estimate(&spec, MODE_CSBP, 8, r, 4, &one));
        assert_memory_equal(&one, &e[r], sizeof one);
        pairs += e[r].visible_pairs;
        rows += e[r].rows;
    }
    assert_int_equal(rows, 17 * length);
    assert_true(pairs == 2 * 17 * (length / 2 * (length + 1)));

    /* A window within a block cuts every block: refused, and it says why. */
    spec.objective.block_size = 4;
    spec.model.config.window[1] = 3;
    struct err *error = plan_estimates(&spec, MODE_CSBP, 8, 4, e);
    assert_non_null(error);
    assert_int_equal(err_kind(error), ERR_INVALID);
    assert_non_null(strstr(err_message(error), "parts, but at most"));
    err_free(error);
    must(plan_estimates(&spec, MODE_CP, 8, 4, e));
}

static void finds_distinct_windows(void **state)
{
    (void)state;
    struct model_config m = {.layers = 6, .window = {0, 512, 0, 512, 128, 0}};
    int64_t windows[MODEL_MAX_LAYERS];
    int kind[MODEL_MAX_LAYERS];
    const int64_t distinct[3] = {0, 512, 128};
    const int kinds[6] = {0, 1, 0, 1, 2, 0};
    assert_int_equal(plan_windows(&m, windows, kind), 3);
    assert_memory_equal(windows, distinct, sizeof distinct);
    assert_memory_equal(kind, kinds, sizeof kinds);
}

static void makes_the_shape_of_a_spec(void **state)
{
    (void)state;
    struct job_spec spec = small_spec();
    spec.batch.micro_sequences = 2;
    struct plan_shape s = plan_shape_of(&spec);
    assert_true(s.mode == MODE_CSBP && !s.causal && s.degree == 2 && s.views == 1);
    assert_int_equal(s.length, 64);
    assert_int_equal(s.block_size, 4);
    spec.objective.type = OBJECTIVE_AUTOREGRESSIVE;
    assert_true(plan_shape_of(&spec).causal);
}

/* ---- "auto" ---- */

static void chooses(const struct job_spec *spec, int slots, size_t slot_bytes,
                    enum parallel_mode mode, int degree, int data)
{
    enum parallel_mode got_mode;
    int got_degree, got_data;
    must(plan_choose(spec, slots, slot_bytes, 4, &got_mode, &got_degree, &got_data));
    assert_int_equal(got_mode, mode);
    assert_int_equal(got_degree, degree);
    assert_int_equal(got_data, data);
}

/* Bytes of the neediest rank. */
static size_t need(struct job_spec spec, int degree, int data)
{
    size_t most = 0;
    spec.parallel.data = data;
    for (int r = 0; r < degree; r++) {
        struct plan_estimate e;
        must(plan_estimate(&spec, degree == 1 ? MODE_NONE : MODE_CSBP, degree, r, 4, &e));
        most = e.total_bytes > most ? e.total_bytes : most;
    }
    return most;
}

static void chooses_the_smallest_degree_that_fits(void **state)
{
    (void)state;
    struct job_spec spec = small_spec();
    spec.data.sequence_length = 512;
    spec.batch.sequences = 6;
    chooses(&spec, 4, SIZE_MAX, MODE_NONE, 1, 3); /* 6 sequences over 4 slots: 3 */
    chooses(&spec, 1, SIZE_MAX, MODE_NONE, 1, 1);
    chooses(&spec, 8, SIZE_MAX, MODE_NONE, 1, 6);
    spec.batch.micro_sequences = 3;
    chooses(&spec, 8, SIZE_MAX, MODE_NONE, 1, 2);
    spec.batch.micro_sequences = 1;

    assert_true(need(spec, 2, 2) < need(spec, 1, 3));
    chooses(&spec, 4, need(spec, 1, 3), MODE_NONE, 1, 3);
    chooses(&spec, 4, need(spec, 1, 3) - 1, MODE_CSBP, 2, 2);
    chooses(&spec, 4, need(spec, 3, 1), MODE_CSBP, 3, 1);
    chooses(&spec, 5, need(spec, 3, 1) - 1, MODE_CSBP, 4, 1);
    chooses(&spec, 100, need(spec, 32, 3), MODE_CSBP, 32, 3);
    chooses(&spec, 20, need(spec, 20, 1), MODE_CSBP, 20, 1);
}

static void says_what_does_not_fit(void **state)
{
    (void)state;
    struct job_spec spec = small_spec();
    enum parallel_mode mode;
    int degree, data;
    struct err *e = plan_choose(&spec, 64, 1000, 4, &mode, &degree, &data);
    assert_non_null(e);
    assert_int_equal(err_kind(e), ERR_INVALID);
    assert_non_null(strstr(err_message(e), "no degree that fits in 64 slots"));
    err_free(e);
    e = plan_choose(&spec, 0, 1000, 4, &mode, &degree, &data);
    assert_non_null(e);
    assert_int_equal(err_kind(e), ERR_CONFLICT);
    err_free(e);
    spec.data.sequence_length = 30;
    e = plan_choose(&spec, 2, SIZE_MAX, 4, &mode, &degree, &data);
    assert_non_null(e);
    assert_string_equal(err_message(e),
                        "data.sequence_length 30 is not a multiple of objective.block_size 4");
    err_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(estimates_as_summed_by_hand),
        cmocka_unit_test(estimates_follow_the_spec),
        cmocka_unit_test(saturates),
        cmocka_unit_test(counts_the_traffic_of_the_layouts),
        cmocka_unit_test(sums_pairs_as_the_rows_do),
        cmocka_unit_test(estimates_what_is_large),
        cmocka_unit_test(finds_distinct_windows),
        cmocka_unit_test(makes_the_shape_of_a_spec),
        cmocka_unit_test(chooses_the_smallest_degree_that_fits),
        cmocka_unit_test(says_what_does_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
