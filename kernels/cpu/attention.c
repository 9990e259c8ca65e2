/* Interval attention, forward.
 *
 * Query rows are taken TILE_ROWS at a time. The query heads that share a head of K and V are
 * stacked below each other ("lines": row-major, then the head inside its group), which makes one
 * larger product of them. For each tile of keys (tiles.h) the scores of the lines are a product,
 * their exponentials under a running maximum are summed, and the output is a second product:
 * the streaming softmax of Milakov and Gimelshein (arXiv 1805.02867) as in FlashAttention.
 *
 * A merge needs no code of its own: what earlier calls left is the state (maximum lse, sum 1,
 * output o) that this call's keys are streamed into.
 */
#include "kernels/cpu/attention.h"

#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp.h"

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

struct attention_shape cpu_attention_shape(const struct attention *a)
{
    struct attention_shape s = {
        .rows = a->q.shape[0], .heads = a->q.shape[1], .d = a->q.shape[2], .group = 1};
    assert_f32(&a->q, 3);
    assert_f32(&a->o, 3);
    assert_f32(&a->lse, 2);
    assert(same_shape(&a->o, &a->q));
    assert(a->lse.shape[0] == s.rows && a->lse.shape[1] == s.heads);
    assert(a->n_pieces >= 0 && a->n_pieces <= ATTENTION_PIECES);
    s.kv_heads = s.heads;
    for (int i = 0; i < a->n_pieces; i++) {
        const struct attention_piece *piece = &a->pieces[i];
        assert_f32(&piece->k, 3);
        assert_f32(&piece->v, 3);
        assert(same_shape(&piece->k, &piece->v) && piece->k.shape[2] == s.d);
        assert(piece->k.stride[0] <= INT_MAX && piece->v.stride[0] <= INT_MAX);
        assert(i == 0 || piece->k.shape[1] == s.kv_heads);
        s.kv_heads = piece->k.shape[1];
    }
    assert(s.kv_heads > 0 && s.heads % s.kv_heads == 0);
    s.group = s.heads / s.kv_heads;
    assert(s.group * TILE_ROWS <= INT_MAX && s.d <= INT_MAX);
    return s;
}

void cpu_attention_pack(float *lines, const struct tensor *t, int64_t row_begin, int64_t row_end,
                        int64_t head, int64_t group, float factor)
{
    int64_t d = t->shape[2];
    for (int64_t row = row_begin; row < row_end; row++)
        for (int64_t g = 0; g < group; g++, lines += d) {
            const float *from =
                (const float *)t->data + row * t->stride[0] + (head + g) * t->stride[1];
            for (int64_t j = 0; j < d; j++)
                lines[j] = from[j] * factor;
        }
}

void cpu_attention_scores(float *scores, const float *lines, const struct tensor *keys,
                          const struct tile *t, int64_t row_begin, int64_t kv_head, int64_t group)
{
    int64_t d = keys->shape[2];
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)((t->row_end - t->row_begin) * group),
                (int)(t->key_end - t->key_begin), (int)d, 1.0f,
                lines + (t->row_begin - row_begin) * group * d, (int)d,
                (const float *)keys->data + t->key_row * keys->stride[0] +
                    kv_head * keys->stride[1],
                (int)keys->stride[0], 0.0f, scores, TILE_KEYS);
}

/* The state of the lines of a query tile and one head of K and V. */
struct stream {
    float *q;      /* [lines, d], scaled */
    float *o;      /* [lines, d], not yet divided by the sum */
    float *top;    /* [lines] the largest score so far */
    float *sum;    /* [lines] of e^(score - top) */
    float *scores; /* [lines, TILE_KEYS] */
};

/* Scores of a tile become e^(score - top), 0 where a row does not see the key, with top and sum
 * brought up to date and the output rescaled to the new top. */
VECTORIZED static void soften(struct stream *s, const struct tile *t,
                              const struct key_interval *intervals, int64_t row_begin,
                              int64_t group, int64_t d)
{
    int64_t keys = t->key_end - t->key_begin;
    float *x = s->scores;
    for (int64_t row = t->row_begin; row < t->row_end; row++) {
        struct key_interval seen = tile_visible(t, intervals[row]);
        int64_t line = (row - row_begin) * group;
        for (int64_t end = line + group; line < end; line++, x += TILE_KEYS) {
            if (seen.begin >= seen.end) {
                memset(x, 0, (size_t)keys * sizeof *x);
                continue;
            }
            float old = s->top[line], top = old, sum = 0;
#pragma omp simd reduction(max : top)
            for (int64_t j = seen.begin; j < seen.end; j++)
                top = x[j] > top ? x[j] : top;
            for (int64_t j = 0; j < seen.begin; j++)
                x[j] = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t j = seen.begin; j < seen.end; j++) {
                float e = exp_f32(x[j] - top);
                x[j] = e;
                sum += e;
            }
            for (int64_t j = seen.end; j < keys; j++)
                x[j] = 0;
            if (top > old) {
                float shrink = exp_f32(old - top);
                float *o = s->o + line * d;
                for (int64_t j = 0; j < d; j++)
                    o[j] *= shrink;
                s->sum[line] *= shrink;
                s->top[line] = top;
            }
            s->sum[line] += sum;
        }
    }
}

static void begin_stream(struct stream *s, const struct attention *a, int64_t row_begin,
                         int64_t row_end, int64_t head, int64_t group)
{
    int64_t d = a->q.shape[2];
    cpu_attention_pack(s->q, &a->q, row_begin, row_end, head, group, a->scale);
    int64_t line = 0;
    for (int64_t row = row_begin; row < row_end; row++)
        for (int64_t g = 0; g < group; g++, line++) {
            float before =
                a->merge ? *element_f32(&a->lse, row * a->q.shape[1] + head + g) : -INFINITY;
            s->top[line] = before;
            s->sum[line] = before == -INFINITY ? 0.0f : 1.0f;
            float *o = s->o + line * d;
            if (before == -INFINITY)
                memset(o, 0, (size_t)d * sizeof *o);
            else
                memcpy(o, row_f32(&a->o, row * a->q.shape[1] + head + g), (size_t)d * sizeof *o);
        }
}

static bool sees_something(const struct attention *a, int64_t row)
{
    for (int i = 0; i < a->n_pieces; i++)
        if (a->pieces[i].intervals[row].begin < a->pieces[i].intervals[row].end)
            return true;
    return false;
}

static void end_stream(const struct stream *s, const struct attention *a, int64_t row_begin,
                       int64_t row_end, int64_t head, int64_t group)
{
    int64_t d = a->q.shape[2], line = 0;
    for (int64_t row = row_begin; row < row_end; row++) {
        bool seen = sees_something(a, row);
        for (int64_t g = 0; g < group; g++, line++) {
            float *o = row_f32(&a->o, row * a->q.shape[1] + head + g);
            float *lse = element_f32(&a->lse, row * a->q.shape[1] + head + g);
            if (seen) {
                float inverse = 1.0f / s->sum[line];
                for (int64_t j = 0; j < d; j++)
                    o[j] = s->o[line * d + j] * inverse;
                *lse = s->top[line] + logf(s->sum[line]);
            } else if (!a->merge) {
                memset(o, 0, (size_t)d * sizeof *o);
                *lse = -INFINITY;
            }
        }
    }
}

static void attend(struct stream *s, const struct attention_piece *piece, const struct tile *t,
                   int64_t row_begin, int64_t kv_head, int64_t group, int64_t d)
{
    cpu_attention_scores(s->scores, s->q, &piece->k, t, row_begin, kv_head, group);
    soften(s, t, piece->intervals, row_begin, group, d);
    cblas_sgemm(
        CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)((t->row_end - t->row_begin) * group),
        (int)d, (int)(t->key_end - t->key_begin), 1.0f, s->scores, TILE_KEYS,
        (const float *)piece->v.data + t->key_row * piece->v.stride[0] +
            kv_head * piece->v.stride[1],
        (int)piece->v.stride[0], 1.0f, s->o + (t->row_begin - row_begin) * group * d, (int)d);
}

void cpu_attention_forward(struct kernel_queue *queue, const struct attention *a)
{
    struct attention_shape shape = cpu_attention_shape(a);
    if (queue->failure || shape.rows == 0 || shape.heads == 0 || shape.d == 0)
        return;
    int64_t group = shape.group, d = shape.d, lines = TILE_ROWS * group;
    float *memory = cpu_scratch(queue, (size_t)(lines * (2 * d + 2 + TILE_KEYS)) * sizeof(float));
    if (!memory)
        return;
    struct stream s = {.q = memory,
                       .o = memory + lines * d,
                       .scores = memory + lines * 2 * d,
                       .top = memory + lines * (2 * d + TILE_KEYS),
                       .sum = memory + lines * (2 * d + TILE_KEYS + 1)};
    struct tile_list tiles[ATTENTION_PIECES] = {0};
    for (int64_t begin = 0; begin < shape.rows; begin += TILE_ROWS) {
        int64_t end = min(begin + TILE_ROWS, shape.rows);
        size_t work = 0;
        for (int i = 0; i < a->n_pieces; i++) {
            if (!tile_list_build(&tiles[i], &a->pieces[i], begin, end)) {
                cpu_fail(queue, err_no_memory());
                goto out;
            }
            work += tiles[i].count;
        }
        if (work == 0 && a->merge)
            continue;
        for (int64_t kv_head = 0; kv_head < shape.kv_heads; kv_head++) {
            begin_stream(&s, a, begin, end, kv_head * group, group);
            for (int i = 0; i < a->n_pieces; i++)
                for (size_t t = 0; t < tiles[i].count; t++)
                    attend(&s, &a->pieces[i], &tiles[i].tile[t], begin, kv_head, group, d);
            end_stream(&s, a, begin, end, kv_head * group, group);
        }
    }
out:
    for (int i = 0; i < ATTENTION_PIECES; i++)
        tile_list_free(&tiles[i]);
}
