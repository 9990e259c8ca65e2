/* Interval attention against a double loop over all keys of a row. */
#include <sys/resource.h>

#include "kernels/cpu/tiles.h"
#include "tests/unit/test_kernels_random.h"

#define MOST_KEYS 700

/* An allocation that the machine cannot give must come back as NULL under ASan too. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

/* A piece and the space of its positions: runs without holes, each made of chunks whose rows lie
 * anywhere in K and V. */
struct space {
    int n_runs;
    struct key_interval runs[8];
    int64_t rows;
    struct key_chunk chunks[64];
    int n_chunks;
};

static struct space make_space(int64_t most_keys)
{
    struct space s = {.n_runs = (int)pick(1, 4)};
    int64_t position = chance(0.3) ? pick(0, 1 << 21) : 0;
    for (int r = 0; r < s.n_runs; r++) {
        position += chance(0.5) ? pick(1, 50) : pick(1, 5000);
        int64_t length = pick(1, most_keys / s.n_runs);
        s.runs[r] = (struct key_interval){position, position + length};
        int parts = (int)pick(1, 6);
        for (int c = 0; c < parts && length > 0; c++) {
            int64_t part = c == parts - 1 ? length : pick(1, length);
            s.chunks[s.n_chunks++] = (struct key_chunk){position, part, 0};
            position += part;
            length -= part;
        }
    }
    /* Rows are dealt in another order than positions, sometimes with rows between that no chunk
     * holds; sometimes in order, so that chunks continue each other. */
    int order[64];
    for (int c = 0; c < s.n_chunks; c++)
        order[c] = c;
    bool shuffled = chance(0.6);
    for (int c = s.n_chunks - 1; shuffled && c > 0; c--) {
        int other = (int)pick(0, c), keep = order[c];
        order[c] = order[other];
        order[other] = keep;
    }
    for (int c = 0; c < s.n_chunks; c++) {
        s.rows += chance(0.3) ? pick(0, 4) : 0;
        s.chunks[order[c]].row = s.rows;
        s.rows += s.chunks[order[c]].length;
    }
    return s;
}

static int64_t row_of(const struct attention_piece *p, int64_t position)
{
    for (int c = 0; c < p->n_chunks; c++)
        if (position >= p->chunks[c].position &&
            position < p->chunks[c].position + p->chunks[c].length)
            return p->chunks[c].row + position - p->chunks[c].position;
    fail_msg("position %lld is in no chunk", (long long)position);
    return -1;
}

/* Rows that see any part of a run; causal rows; windows; blocks; runs of equal rows; nothing. */
static void make_intervals(struct key_interval *out, const struct space *s, int64_t n)
{
    int kind = (int)pick(0, 5);
    int64_t block = pick(1, 40), window = pick(1, 90);
    for (int64_t i = 0; i < n; i++) {
        const struct key_interval *run =
            &s->runs[kind == 0 ? pick(0, s->n_runs - 1) : i * s->n_runs / n];
        int64_t length = run->end - run->begin, i_here = i % length;
        switch (kind) {
        case 0: {
            int64_t begin = pick(run->begin, run->end - 1);
            out[i] = (struct key_interval){begin, pick(begin, run->end)};
            break;
        }
        case 1:
            out[i] = (struct key_interval){run->begin, run->begin + i_here + 1};
            break;
        case 2:
            out[i] = (struct key_interval){run->begin + (i_here > window ? i_here - window : 0),
                                           run->begin + i_here + 1};
            break;
        case 3: {
            int64_t begin = i_here / block * block;
            out[i] = (struct key_interval){
                run->begin + begin, begin + block < length ? run->begin + begin + block : run->end};
            break;
        }
        case 4:
            out[i] = *run;
            break;
        default:
            out[i] = (struct key_interval){pick(0, 100), pick(-100, 0)};
        }
        if (kind < 5 && chance(0.05))
            out[i].end = out[i].begin - pick(0, 3);
    }
}

struct problem {
    struct attention a;
    struct space spaces[ATTENTION_PIECES];
    int64_t n, heads, kv_heads, d;
    double size; /* of the scores, which their rounding grows with */
    /* What is right, [n, H, d], [n, H] and for each piece [m, H_kv, d]. */
    double *o, *lse, *dq, *dk[ATTENTION_PIECES], *dv[ATTENTION_PIECES];
};

static struct problem make_problem(int n_pieces)
{
    static const int64_t groups[] = {1, 2, 4, 7}, dims[] = {8, 16, 32, 64, 128};
    struct problem p = {.kv_heads = pick(1, 3), .d = dims[pick(0, 4)]};
    p.heads = p.kv_heads * groups[pick(0, 3)];
    p.n = chance(0.1) ? 1 : chance(0.05) ? 0 : pick(1, 150);
    float spread = chance(0.1) ? 30 : 1.5f;
    p.size = spread / 1.5;
    struct attention *a = &p.a;
    a->q = random_tensor(p.n, p.heads, p.d, -spread, spread);
    a->d_o = random_tensor(p.n, p.heads, p.d, -1, 1);
    a->o = poisoned(p.n, p.heads, p.d);
    a->lse = poisoned(p.n, p.heads, -1);
    a->delta = poisoned(p.n, p.heads, -1);
    a->dq = random_tensor(p.n, p.heads, p.d, -1, 1);
    a->scale = 1.0f / sqrtf((float)p.d);
    a->n_pieces = n_pieces;
    for (int i = 0; i < n_pieces; i++) {
        struct attention_piece *piece = &a->pieces[i];
        p.spaces[i] = make_space(chance(0.3) ? 12 : i == 0 ? MOST_KEYS : 150);
        struct space *s = &p.spaces[i];
        struct key_chunk *chunks = take(sizeof s->chunks);
        memcpy(chunks, s->chunks, sizeof s->chunks);
        piece->chunks = chunks;
        piece->n_chunks = s->n_chunks;
        struct key_interval *intervals = take((size_t)p.n * sizeof *intervals);
        make_intervals(intervals, s, p.n);
        piece->intervals = intervals;
        /* Rows that nobody sees stay NaN: they must not be read. */
        piece->k = poisoned(s->rows, p.kv_heads, p.d);
        piece->v = poisoned(s->rows, p.kv_heads, p.d);
        piece->dk = random_tensor(s->rows, p.kv_heads, p.d, -1, 1);
        piece->dv = random_tensor(s->rows, p.kv_heads, p.d, -1, 1);
        for (int64_t row = 0; row < p.n; row++)
            for (int64_t j = intervals[row].begin; j < intervals[row].end; j++) {
                int64_t key = row_of(piece, j) * p.kv_heads;
                if (!isnan(*at(&piece->k, key, 0)))
                    continue;
                fill(tensor_rows(piece->k, key / p.kv_heads, 1), -1.5f, 1.5f);
                fill(tensor_rows(piece->v, key / p.kv_heads, 1), -1.5f, 1.5f);
            }
    }
    return p;
}

static double score(const struct problem *p, const struct tensor *k, int64_t line, int64_t key)
{
    double sum = 0;
    for (int64_t j = 0; j < p->d; j++)
        sum += (double)*at(&p->a.q, line, j) * *at(k, key, j);
    return sum * p->a.scale;
}

/* One line (row, head): softmax over everything it sees, then all gradients of d_o . o. */
static void solve_line(struct problem *p, int64_t row, int64_t head)
{
    const struct attention *a = &p->a;
    int64_t line = row * p->heads + head, kv_head = head / (p->heads / p->kv_heads);
    double *scores[ATTENTION_PIECES] = {NULL}, top = -INFINITY, sum = 0, delta = 0;
    for (int i = 0; i < a->n_pieces; i++) {
        struct key_interval seen = a->pieces[i].intervals[row];
        if (seen.begin >= seen.end)
            continue;
        scores[i] = malloc((size_t)(seen.end - seen.begin) * sizeof(double));
        for (int64_t j = seen.begin; j < seen.end; j++) {
            int64_t key = row_of(&a->pieces[i], j) * p->kv_heads + kv_head;
            double s = scores[i][j - seen.begin] = score(p, &a->pieces[i].k, line, key);
            top = s > top ? s : top;
        }
    }
    double *o = p->o + line * p->d;
    for (int i = 0; i < a->n_pieces; i++)
        for (int64_t j = 0;
             scores[i] && j < a->pieces[i].intervals[row].end - a->pieces[i].intervals[row].begin;
             j++)
            sum += exp(scores[i][j] - top);
    p->lse[line] = sum > 0 ? top + log(sum) : -INFINITY;
    for (int pass = 0; pass < 2; pass++) {
        for (int j = 0; pass && j < p->d; j++)
            delta += o[j] * *at(&a->d_o, line, j);
        for (int i = 0; i < a->n_pieces; i++) {
            struct key_interval seen = a->pieces[i].intervals[row];
            for (int64_t j = seen.begin; scores[i] && j < seen.end; j++) {
                int64_t key = row_of(&a->pieces[i], j) * p->kv_heads + kv_head;
                double weight = exp(scores[i][j - seen.begin] - p->lse[line]), dp = 0;
                const float *v = at(&a->pieces[i].v, key, 0), *k = at(&a->pieces[i].k, key, 0);
                const float *q = at(&a->q, line, 0), *d_o = at(&a->d_o, line, 0);
                for (int64_t c = 0; pass == 0 && c < p->d; c++)
                    o[c] += weight * v[c];
                for (int64_t c = 0; c < p->d; c++)
                    dp += (double)d_o[c] * v[c];
                double ds = weight * (dp - delta) * a->scale;
                for (int64_t c = 0; pass == 1 && c < p->d; c++) {
                    p->dv[i][key * p->d + c] += weight * d_o[c];
                    p->dk[i][key * p->d + c] += ds * q[c];
                    p->dq[line * p->d + c] += ds * k[c];
                }
            }
        }
    }
    for (int i = 0; i < a->n_pieces; i++)
        free(scores[i]);
}

static double *values_of(struct tensor t)
{
    double *v = doubles(rows_of(&t) * columns_of(&t));
    for (int64_t i = 0; i < rows_of(&t); i++)
        for (int64_t j = 0; j < columns_of(&t); j++)
            v[i * columns_of(&t) + j] = *at(&t, i, j);
    return v;
}

static void solve(struct problem *p)
{
    p->o = doubles(p->n * p->heads * p->d);
    p->lse = doubles(p->n * p->heads);
    p->dq = values_of(p->a.dq);
    for (int i = 0; i < p->a.n_pieces; i++) {
        p->dk[i] = values_of(p->a.pieces[i].dk);
        p->dv[i] = values_of(p->a.pieces[i].dv);
    }
    for (int64_t row = 0; row < p->n; row++)
        for (int64_t head = 0; head < p->heads; head++)
            solve_line(p, row, head);
}

static void check_forward(const struct problem *p)
{
    check_queue();
    check_tensor("o", p->a.o, p->o, 1e-5 * p->size, 1);
    check_gaps(p->a.lse);
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t h = 0; h < p->heads; h++) {
            double actual = *at(&p->a.lse, i, h), expected = p->lse[i * p->heads + h];
            if (expected == -INFINITY)
                assert_true(actual == -INFINITY);
            else
                check_close("lse", actual, expected, 2e-6 * p->size, 1);
        }
}

static void check_backward(const struct problem *p)
{
    check_queue();
    check_tensor("dq", p->a.dq, p->dq, 3e-5 * p->size, 1);
    for (int i = 0; i < p->a.n_pieces; i++) {
        check_tensor("dk", p->a.pieces[i].dk, p->dk[i], 3e-5 * p->size, 2);
        check_tensor("dv", p->a.pieces[i].dv, p->dv[i], 3e-5 * p->size, 2);
    }
}

static void forward_and_backward_are_those_of_a_double_loop(void **state)
{
    (void)state;
    for (int round = 0; round < 150; round++) {
        random_state = 1000 + (uint64_t)round;
        struct problem p = make_problem((int)pick(1, 2));
        solve(&p);
        kernels->attention_forward(queue, &p.a);
        check_forward(&p);
        kernels->attention_delta(queue, &p.a);
        kernels->attention_backward(queue, &p.a);
        check_backward(&p);
        free_all();
    }
}

static struct attention only(const struct attention *a, int piece)
{
    struct attention one = *a;
    one.n_pieces = 1;
    one.pieces[0] = a->pieces[piece];
    return one;
}

static void pieces_in_calls_of_their_own_merge_to_one_call(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        random_state = 5000 + (uint64_t)round;
        struct problem p = make_problem(2);
        solve(&p);
        int first = (int)pick(0, 1);
        struct attention one = only(&p.a, first), other = only(&p.a, 1 - first);
        other.merge = true;
        kernels->attention_forward(queue, &one);
        kernels->attention_forward(queue, &other);
        check_forward(&p);
        kernels->attention_delta(queue, &p.a);
        kernels->attention_backward(queue, &other);
        kernels->attention_backward(queue, &one);
        check_backward(&p);
        free_all();
    }
}

/* Intervals cut at random into parts, as if keys arrived in that many exchanges; a part may be
 * empty for a row, for all rows, or come before the first that is not. */
static void parts_of_intervals_merge_to_one_call(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        random_state = 9000 + (uint64_t)round;
        struct problem p = make_problem(2);
        solve(&p);
        int parts = (int)pick(2, 3);
        struct key_interval *cut[3][ATTENTION_PIECES];
        for (int i = 0; i < 2; i++) {
            for (int c = 0; c < parts; c++)
                cut[c][i] = take((size_t)p.n * sizeof(struct key_interval));
            bool empty_first = chance(0.3);
            for (int64_t row = 0; row < p.n; row++) {
                struct key_interval seen = p.a.pieces[i].intervals[row];
                int64_t from = seen.begin;
                for (int c = 0; c < parts; c++) {
                    int64_t to = seen.end;
                    if (c < parts - 1)
                        to = seen.begin >= seen.end || (c == 0 && empty_first)
                                 ? from
                                 : pick(from, seen.end);
                    cut[c][i][row] = (struct key_interval){from, to};
                    from = to;
                }
            }
        }
        struct attention calls[3];
        for (int c = 0; c < parts; c++) {
            calls[c] = p.a;
            calls[c].merge = c > 0;
            calls[c].pieces[0].intervals = cut[c][0];
            calls[c].pieces[1].intervals = cut[c][1];
            kernels->attention_forward(queue, &calls[c]);
        }
        check_forward(&p);
        kernels->attention_delta(queue, &p.a);
        for (int c = 0; c < parts; c++)
            kernels->attention_backward(queue, &calls[c]);
        check_backward(&p);
        free_all();
    }
}

static void merging_nothing_changes_nothing(void **state)
{
    (void)state;
    random_state = 77;
    for (int round = 0; round < 20; round++) {
        struct problem p = make_problem(1);
        kernels->attention_forward(queue, &p.a);
        struct tensor o = clone(p.a.o), lse = clone(p.a.lse);
        struct key_interval *none = take((size_t)p.n * sizeof *none);
        for (int64_t row = 0; row < p.n; row++)
            none[row] = (struct key_interval){5, 5};
        struct attention again = p.a;
        again.merge = true;
        again.pieces[0].intervals = none;
        kernels->attention_forward(queue, &again);
        again.n_pieces = 0;
        kernels->attention_forward(queue, &again);
        check_equal("o", p.a.o, o);
        check_equal("lse", p.a.lse, lse);
        free_all();
    }
}

static void no_piece_gives_zeros(void **state)
{
    (void)state;
    struct problem p = make_problem(0);
    solve(&p);
    kernels->attention_forward(queue, &p.a);
    check_forward(&p);
    free_all();
}

static void two_runs_give_the_same_bits(void **state)
{
    (void)state;
    random_state = 99;
    for (int round = 0; round < 10; round++) {
        struct problem p = make_problem(2);
        struct attention b = p.a;
        b.o = clone(p.a.o);
        b.lse = clone(p.a.lse);
        b.dq = clone(p.a.dq);
        b.delta = clone(p.a.delta);
        for (int i = 0; i < 2; i++) {
            b.pieces[i].dk = clone(p.a.pieces[i].dk);
            b.pieces[i].dv = clone(p.a.pieces[i].dv);
        }
        const struct attention *runs[] = {&p.a, &b};
        for (int r = 0; r < 2; r++) {
            kernels->attention_forward(queue, runs[r]);
            kernels->attention_delta(queue, runs[r]);
            kernels->attention_backward(queue, runs[r]);
        }
        check_equal("o", p.a.o, b.o);
        check_equal("dq", p.a.dq, b.dq);
        for (int i = 0; i < 2; i++) {
            check_equal("dk", p.a.pieces[i].dk, b.pieces[i].dk);
            check_equal("dv", p.a.pieces[i].dv, b.pieces[i].dv);
        }
        free_all();
    }
}

/* Scores near the ends of fp32's exponentials: one key outweighs all others by e^600. */
static void large_scores_stay_finite(void **state)
{
    (void)state;
    random_state = 3;
    for (int round = 0; round < 10; round++) {
        struct problem p = make_problem(2);
        fill(p.a.q, -200, 200);
        solve(&p);
        kernels->attention_forward(queue, &p.a);
        kernels->attention_delta(queue, &p.a);
        kernels->attention_backward(queue, &p.a);
        check_queue();
        for (int64_t line = 0; line < rows_of(&p.a.o); line++)
            for (int64_t j = 0; j < p.d; j++) {
                assert_true(isfinite(*at(&p.a.o, line, j)));
                assert_true(isfinite(*at(&p.a.dq, line, j)));
                assert_true(fabsf(*at(&p.a.o, line, j)) <= 1.501f);
            }
        free_all();
    }
}

/* Every visible pair is in one tile, no key that nobody sees is in any, and the rectangles are
 * not much larger than what is seen. */
static void tiles_hold_each_visible_pair_once(void **state)
{
    (void)state;
    struct tile_list list = {0};
    for (int round = 0; round < 300; round++) {
        random_state = 20000 + (uint64_t)round;
        struct space s = make_space(MOST_KEYS);
        int64_t n = pick(1, TILE_ROWS);
        struct key_interval intervals[TILE_ROWS];
        make_intervals(intervals, &s, n);
        struct attention_piece piece = {
            .chunks = s.chunks, .n_chunks = s.n_chunks, .intervals = intervals};
        int64_t first = pick(0, n - 1), last = pick(first + 1, n), pairs = 0, covered = 0;
        assert_true(tile_list_build(&list, &piece, first, last));
        for (size_t t = 0; t < list.count; t++) {
            struct tile tile = list.tile[t];
            assert_true(tile.row_begin >= first && tile.row_begin < tile.row_end &&
                        tile.row_end <= last);
            assert_true(tile.key_begin < tile.key_end &&
                        tile.key_end - tile.key_begin <= TILE_KEYS);
            for (int64_t j = tile.key_begin; j < tile.key_end; j++) {
                assert_int_equal(row_of(&piece, j), tile.key_row + j - tile.key_begin);
                bool seen = false;
                for (int64_t row = first; row < last && !seen; row++)
                    seen = j >= intervals[row].begin && j < intervals[row].end;
                assert_true(seen);
            }
            for (int64_t row = tile.row_begin; row < tile.row_end; row++) {
                struct key_interval seen = tile_visible(&tile, intervals[row]);
                covered += seen.end > seen.begin ? seen.end - seen.begin : 0;
            }
            for (size_t u = 0; u < t; u++) {
                struct tile other = list.tile[u];
                assert_true(other.row_end <= tile.row_begin || tile.row_end <= other.row_begin ||
                            other.key_end <= tile.key_begin || tile.key_end <= other.key_begin);
            }
        }
        for (int64_t row = first; row < last; row++)
            pairs += intervals[row].end > intervals[row].begin
                         ? intervals[row].end - intervals[row].begin
                         : 0;
        assert_int_equal(covered, pairs);
    }
    tile_list_free(&list);
}

/* Rows at the two ends of a long sequence in one query tile: what lies between costs nothing. */
static void keys_between_distant_rows_are_left_out(void **state)
{
    (void)state;
    struct key_chunk chunk = {0, 1 << 21, 0};
    struct key_interval intervals[TILE_ROWS];
    for (int row = 0; row < TILE_ROWS; row++) {
        int64_t begin = row < 32 ? 0 : (1 << 21) - 32;
        intervals[row] = (struct key_interval){begin, begin + 32};
    }
    struct attention_piece piece = {.chunks = &chunk, .n_chunks = 1, .intervals = intervals};
    struct tile_list list = {0};
    assert_true(tile_list_build(&list, &piece, 0, TILE_ROWS));
    assert_int_equal(list.count, 2);
    for (int t = 0; t < 2; t++) {
        assert_int_equal(list.tile[t].row_end - list.tile[t].row_begin, 32);
        assert_int_equal(list.tile[t].key_end - list.tile[t].key_begin, 32);
    }
    tile_list_free(&list);
}

/* The list of tiles of rows that see 2^24 keys does not fit in the memory that is left. */
static void running_out_of_memory_is_the_queues_failure(void **state)
{
    (void)state;
    const int64_t keys = 1 << 24;
    struct kernel_queue *q;
    struct key_chunk chunk = {0, keys, 0};
    struct key_interval few = {0, 1}, all = {0, keys};
    struct tensor one = random_tensor(1, 1, 8, -1, 1), line = random_tensor(1, 1, -1, 0, 0);
    struct tensor many = one; /* only the first row is there; no other is reached */
    many.shape[0] = keys;
    struct attention a = {.q = one,
                          .o = one,
                          .d_o = one,
                          .dq = one,
                          .lse = line,
                          .delta = line,
                          .n_pieces = 1,
                          .pieces = {{.k = many,
                                      .v = many,
                                      .dk = many,
                                      .dv = many,
                                      .chunks = &chunk,
                                      .n_chunks = 1,
                                      .intervals = &few}}};
    void (*const operations[])(struct kernel_queue *, const struct attention *) = {
        kernels->attention_forward, kernels->attention_backward};
    for (int i = 0; i < 2; i++) {
        assert_null(kernels->queue_create(&q));
        a.pieces[0].intervals = &few; /* takes the scratch memory */
        operations[i](q, &a);
        assert_null(kernels->queue_wait(q));
        struct rlimit limit, none;
        assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
        none = limit;
        none.rlim_cur = 1;
        a.pieces[0].intervals = &all;
        assert_int_equal(setrlimit(RLIMIT_AS, &none), 0);
        operations[i](q, &a);
        assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
        struct err *e = kernels->queue_wait(q);
        assert_non_null(e);
        assert_int_equal(err_kind(e), ERR_NO_MEMORY);
        err_free(e);
        kernels->queue_destroy(q);
    }
    free_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_hold_each_visible_pair_once),
        cmocka_unit_test(keys_between_distant_rows_are_left_out),
        cmocka_unit_test(forward_and_backward_are_those_of_a_double_loop),
        cmocka_unit_test(pieces_in_calls_of_their_own_merge_to_one_call),
        cmocka_unit_test(parts_of_intervals_merge_to_one_call),
        cmocka_unit_test(merging_nothing_changes_nothing),
        cmocka_unit_test(no_piece_gives_zeros),
        cmocka_unit_test(two_runs_give_the_same_bits),
        cmocka_unit_test(large_scores_stay_finite),
        cmocka_unit_test(running_out_of_memory_is_the_queues_failure),
    };
    return cmocka_run_group_tests(tests, open_queue, close_queue);
}
