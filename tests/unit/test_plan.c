/* Ownership and visibility of the plan, over random shapes. */
#include "plan_cases.h"

#include <string.h>

#define CASES 1200

/* ---- The deal of blocks ---- */

static void deals_blocks_as_written_by_hand(void **state)
{
    (void)state;
    /* q = 2: pairs (0,10) (1,9) to rank 0, (2,8) (3,7) to rank 1; 6 to rank 0, 5 to rank 1, and 4
     * to rank 1, which is lighter by one. */
    const int32_t by_hand[11] = {0, 0, 1, 1, 1, 1, 0, 1, 1, 0, 0};
    int32_t owner[11];
    plan_block_owners(11, 2, owner);
    assert_memory_equal(owner, by_hand, sizeof owner);

    /* Fewer blocks than ranks: the dearest to rank 0, and nothing for the last. */
    const int32_t few[3] = {2, 1, 0};
    plan_block_owners(3, 4, owner);
    assert_memory_equal(owner, few, sizeof few);
}

/* The deal as MATH says it, step by step. */
static void greedy_owners(int64_t blocks, int degree, int32_t *owner)
{
    int64_t count[16] = {0}, cost[16] = {0};
    int64_t q = blocks / (2 * degree);
    for (int64_t i = 0; i < blocks; i++)
        owner[i] = -1;
    for (int r = 0; r < degree; r++)
        for (int64_t i = r * q; i < (r + 1) * q; i++) {
            owner[i] = owner[blocks - 1 - i] = r;
            count[r] += 2;
            cost[r] += (i + 1) + (blocks - i);
        }
    for (int64_t i = blocks - 1; i >= 0; i--) {
        if (owner[i] >= 0)
            continue;
        int best = 0;
        for (int r = 1; r < degree; r++)
            if (count[r] < count[best] || (count[r] == count[best] && cost[r] < cost[best]))
                best = r;
        owner[i] = best;
        count[best]++;
        cost[best] += i + 1;
    }
}

static void deals_blocks_greedily_and_in_balance(void **state)
{
    (void)state;
    int32_t owner[130], expected[130];
    for (int degree = 1; degree <= 16; degree++) {
        for (int64_t blocks = 1; blocks <= 130; blocks++) {
            plan_block_owners(blocks, degree, owner);
            greedy_owners(blocks, degree, expected);
            assert_memory_equal(owner, expected, (size_t)blocks * sizeof *owner);

            int64_t count[16] = {0}, cost[16] = {0};
            for (int64_t i = 0; i < blocks; i++) {
                count[owner[i]]++;
                cost[owner[i]] += i + 1; /* i b + b, in blocks */
            }
            for (int r = 0; r < degree; r++)
                for (int s = 0; s < degree; s++) {
                    assert_true(count[r] - count[s] <= 1);
                    assert_true(cost[r] - cost[s] <= blocks);
                }
        }
    }
}

static void cuts_chunks(void **state)
{
    (void)state;
    for (int degree = 1; degree <= 9; degree++)
        for (int64_t n = 2 * degree; n < 60; n++) {
            assert_int_equal(plan_chunk_begin(n, degree, 0), 0);
            assert_int_equal(plan_chunk_begin(n, degree, 2 * degree), n);
            for (int c = 0; c < 2 * degree; c++)
                assert_true(plan_chunk_begin(n, degree, c) < plan_chunk_begin(n, degree, c + 1));
        }
    assert_int_equal(plan_chunk_begin(11, 2, 1), 2);
    assert_int_equal(plan_chunk_begin(11, 2, 2), 5);
    assert_int_equal(plan_chunk_begin(11, 2, 3), 8);
    /* Far beyond 32 bits. */
    assert_int_equal(plan_chunk_begin((int64_t)1 << 39, 1 << 16, 1), (int64_t)1 << 22);
}

/* ---- Rows and runs ---- */

static void check_rows(const struct plan_case *c, const struct plan_layout *l)
{
    int64_t row = 0;
    for (int i = 0; i < l->n_runs; i++) {
        const struct plan_run *run = &l->runs[i];
        assert_int_equal(run->row, row);
        assert_true(run->length > 0);
        for (int64_t k = 0; k < run->length; k++, row++) {
            int64_t position = run->position + k;
            int document = document_of(c, position);
            assert_int_equal(l->stream[row], run->stream);
            assert_int_equal(l->position[row], position);
            assert_int_equal(l->rope[row],
                             document < 0 ? 0 : position - c->documents[document].begin);
            assert_int_equal(l->carries_loss[row], run->carries_loss && document >= 0);
            assert_int_equal(plan_layout_row(l, run->stream, position), row);
        }
    }
    assert_int_equal(row, l->n_rows);
    assert_int_equal(plan_layout_row(l, 1 + c->shape.views, 0), -1);
    assert_int_equal(plan_layout_row(l, 0, c->shape.length), -1);
    assert_int_equal(plan_layout_row(l, 0, -1), -1);
}

static int count_owners(const struct plan_case *c, struct plan_layout **all, int stream,
                        int64_t position, bool with_loss)
{
    int n = 0;
    for (int r = 0; r < c->shape.degree; r++)
        for (int i = 0; i < all[r]->n_runs; i++) {
            const struct plan_run *run = &all[r]->runs[i];
            n += run->stream == stream && position >= run->position &&
                 position < run->position + run->length && (!with_loss || run->carries_loss);
        }
    return n;
}

static void check_owners(const struct plan_case *c, struct plan_layout **all)
{
    const struct plan_shape *s = &c->shape;
    int32_t owner[128];
    plan_block_owners(s->length / s->block_size, s->degree, owner);
    for (int64_t i = 0; i < s->length; i++) {
        for (int stream = 0; stream <= s->views; stream++) {
            bool loss_row = s->causal || stream > 0;
            assert_int_equal(count_owners(c, all, stream, i, true), loss_row);
            if (s->mode != MODE_BP || stream > 0)
                assert_int_equal(count_owners(c, all, stream, i, false), 1);
            if (stream > 0 && (s->mode == MODE_CSBP || s->mode == MODE_BP))
                assert_true(plan_layout_row(all[owner[i / s->block_size]], stream, i) >= 0);
        }
        if (s->mode == MODE_CSBP) {
            int rank = 0; /* chunks r and 2R - 1 - r */
            for (int chunk = 0; chunk < 2 * s->degree; chunk++)
                if (i >= plan_chunk_begin(s->length, s->degree, chunk) &&
                    i < plan_chunk_begin(s->length, s->degree, chunk + 1))
                    rank = chunk < s->degree ? chunk : 2 * s->degree - 1 - chunk;
            assert_true(plan_layout_row(all[rank], 0, i) >= 0);
        }
    }
    if (s->mode == MODE_BP && !s->causal) {
        for (int r = 0; r < s->degree; r++) { /* the prefix before its last block, no more */
            int64_t end = 0, clean = 0;
            for (int64_t block = 0; block < s->length / s->block_size; block++)
                if (owner[block] == r)
                    end = block * s->block_size;
            while (plan_layout_row(all[r], 0, clean) >= 0)
                clean++;
            assert_int_equal(clean, end);
            assert_int_equal(count_owners(c, all, 0, s->length - 1, false), 0);
        }
    }
}

static void owns_every_row_once(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < CASES; n++)
        for (int mode = MODE_NONE; mode <= MODE_CSBP; mode++) {
            struct plan_case c = random_case(n, mode);
            struct plan_layout **all = make_layouts(&c);
            for (int r = 0; r < c.shape.degree; r++)
                check_rows(&c, all[r]);
            check_owners(&c, all);
            free_layouts(&c, all);
        }
}

static void orders_rows(void **state)
{
    (void)state;
    /* 2 ranks, 2 views, 4 blocks of 2: rank 1 owns blocks 1 and 2, and clean chunks 1 and 2. */
    struct plan_case c = {.shape = {MODE_CSBP, false, 2, 2, 8, 2},
                          .documents = {{0, 8}},
                          .n_documents = 1,
                          .n_kinds = 1};
    struct plan_layout **all = make_layouts(&c);
    const int32_t stream[12] = {1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0};
    const int64_t inner[12] = {2, 3, 4, 5, 2, 3, 4, 5, 2, 3, 4, 5};
    const int64_t outer[12] = {0, 1, 6, 7, 0, 1, 6, 7, 0, 1, 6, 7};
    assert_int_equal(all[1]->n_rows, 12);
    assert_int_equal(all[1]->n_runs, 3);
    assert_memory_equal(all[1]->stream, stream, sizeof stream);
    assert_memory_equal(all[1]->position, inner, sizeof inner);
    assert_int_equal(all[0]->n_runs, 6);
    assert_memory_equal(all[0]->stream, stream, sizeof stream);
    assert_memory_equal(all[0]->position, outer, sizeof outer);
    free_layouts(&c, all);

    /* CP: one stream of 24 rows in 4 chunks of 6; rank 1 has view 0's end, view 1 and clean. */
    c.shape.mode = MODE_CP;
    all = make_layouts(&c);
    const int32_t cp_stream[12] = {1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 0, 0};
    const int64_t cp_position[12] = {6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1};
    assert_memory_equal(all[1]->stream, cp_stream, sizeof cp_stream);
    assert_memory_equal(all[1]->position, cp_position, sizeof cp_position);
    free_layouts(&c, all);

    /* BP, causal: rank 0 of 2 has chunks 0 and 3, so all 8 rows; rank 1 stops behind chunk 2. */
    c.shape = (struct plan_shape){MODE_BP, true, 2, 0, 8, 1};
    all = make_layouts(&c);
    const bool ends[8] = {true, true, false, false, false, false, true, true};
    const bool middle[6] = {false, false, true, true, true, true};
    assert_int_equal(all[0]->n_rows, 8);
    assert_memory_equal(all[0]->carries_loss, ends, sizeof ends);
    assert_int_equal(all[1]->n_rows, 6);
    assert_memory_equal(all[1]->carries_loss, middle, sizeof middle);
    free_layouts(&c, all);
}

/* ---- Visibility ---- */

static void sees_what_the_rule_says(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < CASES; n++)
        for (int mode = MODE_NONE; mode <= MODE_CSBP; mode++) {
            struct plan_case c = random_case(n, mode);
            int64_t L = c.shape.length, keys = (1 + c.shape.views) * L;
            struct plan_layout **all = make_layouts(&c);
            for (int r = 0; r < c.shape.degree; r++) {
                for (int kind = 0; kind < c.n_kinds; kind++) {
                    const struct plan_kind *k = &all[r]->kinds[kind];
                    int64_t pairs = 0;
                    assert_int_equal(k->window, c.windows[kind]);
                    for (int64_t row = 0; row < all[r]->n_rows; row++) {
                        const struct key_interval *bad = &k->pieces[0].intervals[row];
                        const struct key_interval *clean = &k->pieces[1].intervals[row];
                        for (int64_t key = 0; key < keys; key++) {
                            bool seen = (key >= bad->begin && key < bad->end) ||
                                        (key >= clean->begin && key < clean->end);
                            bool ruled = rule_sees(&c, k->window, all[r]->stream[row],
                                                   all[r]->position[row], (int)(key / L), key % L);
                            if (seen != ruled)
                                fail_msg("case %d mode %d rank %d row %d key %d: seen %d, rule %d",
                                         (int)n, mode, r, (int)row, (int)key, seen, ruled);
                            pairs += ruled;
                        }
                        /* Each piece speaks of its own streams. */
                        assert_true(bad->begin >= bad->end || bad->begin >= L);
                        assert_true(clean->begin >= clean->end || clean->end <= L);
                    }
                    assert_int_equal(plan_visible_pairs(all[r], kind), pairs);
                }
            }
            free_layouts(&c, all);
        }
}

static void counts_useful_pairs(void **state)
{
    (void)state;
    const int64_t L = 96, b = 8;
    struct plan_case c = {.shape = {MODE_NONE, false, 1, 2, L, b},
                          .documents = {{0, L}},
                          .n_documents = 1,
                          .n_kinds = 1};
    struct plan_layout **all = make_layouts(&c);
    assert_int_equal(plan_visible_pairs(all[0], 0),
                     2 * (L * (L - b) / 2 + L * b) + L * (L + b) / 2);
    free_layouts(&c, all);

    c.shape.mode = MODE_CSBP;
    c.shape.degree = 4;
    int64_t pairs = 0;
    all = make_layouts(&c);
    for (int r = 0; r < 4; r++)
        pairs += plan_visible_pairs(all[r], 0);
    assert_int_equal(pairs, 2 * (L * (L - b) / 2 + L * b) + L * (L + b) / 2);
    free_layouts(&c, all);
}

/* ---- Wrong input ---- */

static void refuses(struct plan_shape shape, int rank, struct plan_document document,
                    int64_t window, const char *message)
{
    struct plan_layout *l = NULL;
    struct err *e = plan_layout_create(&shape, rank, &document, 1, &window, 1, &l);
    assert_null(l);
    if (!e)
        fail_msg("accepted what should be refused: %s", message);
    assert_int_equal(err_kind(e), ERR_INVALID);
    assert_string_equal(err_message(e), message);
    err_free(e);
}

static void names_what_is_wrong(void **state)
{
    (void)state;
    const struct plan_shape good = {MODE_CSBP, false, 2, 1, 32, 8};
    const struct plan_document all = {0, 32};
    struct plan_shape s = good;
    s.length = 30;
    refuses(s, 0, all, 0, "data.sequence_length 30 is not a multiple of objective.block_size 8");
    s = good;
    s.degree = 17;
    refuses(s, 0, all, 0,
            "data.sequence_length 32 is less than 2 x parallel.degree 17: a rank needs two chunks "
            "of it");
    s = good;
    s.degree = 0;
    refuses(s, 0, all, 0, "parallel.degree 0 is not between 1 and 1024");
    s = good;
    s.mode = MODE_NONE;
    refuses(s, 0, all, 0, "parallel.degree 2 must be 1 where parallel.mode is none");
    s = good;
    s.views = 0;
    refuses(s, 0, all, 0, "objective.views 0 is not between 1 and 255");
    s.causal = true;
    s.views = 1;
    refuses(s, 0, all, 0, "objective.views 1 must be 0 for an autoregressive objective");
    s = good;
    s.block_size = 0;
    refuses(s, 0, all, 0, "objective.block_size 0 is not positive");
    s = good;
    s.length = (int64_t)1 << 40;
    refuses(s, 0, all, 0,
            "data.sequence_length 1099511627776 (times batch.micro_sequences) is not between 1 and "
            "67108864");
    refuses(good, 2, all, 0, "rank 2 is not between 0 and parallel.degree - 1 = 1");
    refuses(good, 0, all, -1, "sliding window -1 is negative");
    refuses(good, 0, (struct plan_document){8, 33}, 0,
            "document 0 covers rows [8, 33), which must lie in order within [0, 32)");
    refuses(good, 0, (struct plan_document){9, 8}, 0,
            "document 0 covers rows [9, 8), which must lie in order within [0, 32)");
    /* Degree 1 is as good as any other. */
    s = good;
    s.degree = 1;
    int64_t window = 0;
    struct plan_layout *l;
    must(plan_layout_create(&s, 0, &all, 1, &window, 1, &l));
    assert_int_equal(l->kinds[0].exchange, EXCHANGE_NONE);
    assert_true(l->kinds[0].pieces[0].local && l->kinds[0].pieces[1].local);
    assert_int_equal(l->n_rows, 64);
    plan_layout_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deals_blocks_as_written_by_hand),
        cmocka_unit_test(deals_blocks_greedily_and_in_balance),
        cmocka_unit_test(cuts_chunks),
        cmocka_unit_test(owns_every_row_once),
        cmocka_unit_test(orders_rows),
        cmocka_unit_test(sees_what_the_rule_says),
        cmocka_unit_test(counts_useful_pairs),
        cmocka_unit_test(names_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
