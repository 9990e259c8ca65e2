/* Interval attention, backward.
 *
 * With P = e^(score - lse), recomputed from the forward's lse, and D = rowsum(d_o o):
 *
 *     dV += P^T d_o       dP = d_o V^T       dS = P (dP - D)
 *     dQ += scale dS K    dK += scale dS^T Q
 *
 * over the same tiles and lines as the forward. dK and dV are added to in place; a tile of query
 * rows is finished for one head before the next begins, so every sum has a fixed order.
 */
#include "kernels/cpu/attention.h"

#include <cblas.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp.h"

struct lines {
    float *q;     /* [lines, d], scaled */
    float *d_o;   /* [lines, d] */
    float *dq;    /* [lines, d], not scaled */
    float *p;     /* [lines, TILE_KEYS] scores, then P */
    float *ds;    /* [lines, TILE_KEYS] dP, then dS */
    float *lse;   /* [lines] */
    float *delta; /* [lines] */
};

/* Scores become P, 0 where a row does not see the key. */
VECTORIZED static void probabilities(struct lines *l, const struct tile *t,
                                     const struct key_interval *intervals, int64_t row_begin,
                                     int64_t group)
{
    int64_t keys = t->key_end - t->key_begin;
    float *p = l->p;
    for (int64_t row = t->row_begin; row < t->row_end; row++) {
        struct key_interval seen = tile_visible(t, intervals[row]);
        if (seen.begin >= seen.end)
            seen.begin = seen.end = 0;
        int64_t line = (row - row_begin) * group;
        for (int64_t end = line + group; line < end; line++, p += TILE_KEYS) {
            float lse = l->lse[line];
            for (int64_t j = 0; j < seen.begin; j++)
                p[j] = 0;
#pragma omp simd
            for (int64_t j = seen.begin; j < seen.end; j++)
                p[j] = exp_f32(p[j] - lse);
            for (int64_t j = seen.end; j < keys; j++)
                p[j] = 0;
        }
    }
}

VECTORIZED static void score_gradients(struct lines *l, const struct tile *t, int64_t row_begin,
                                       int64_t group)
{
    int64_t keys = t->key_end - t->key_begin;
    float *restrict ds = l->ds;
    const float *restrict p = l->p;
    int64_t first = (t->row_begin - row_begin) * group, last = (t->row_end - row_begin) * group;
    for (int64_t line = first; line < last; line++, ds += TILE_KEYS, p += TILE_KEYS) {
        float delta = l->delta[line];
        for (int64_t j = 0; j < keys; j++)
            ds[j] = p[j] * (ds[j] - delta);
    }
}

/* Adds `lines`^T times weights [lines, TILE_KEYS] to the tile's rows of a gradient of K or V. */
static void add_to_keys(const struct tensor *grad, const float *weights, const float *lines,
                        const struct tile *t, int64_t row_begin, int64_t kv_head, int64_t group)
{
    int64_t d = grad->shape[2];
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)(t->key_end - t->key_begin), (int)d,
                (int)((t->row_end - t->row_begin) * group), 1.0f, weights, TILE_KEYS,
                lines + (t->row_begin - row_begin) * group * d, (int)d, 1.0f,
                (float *)grad->data + t->key_row * grad->stride[0] + kv_head * grad->stride[1],
                (int)grad->stride[0]);
}

static void differentiate(struct lines *l, const struct attention_piece *piece,
                          const struct tile *t, int64_t row_begin, int64_t kv_head, int64_t group)
{
    int64_t d = piece->k.shape[2];
    cpu_attention_scores(l->p, l->q, &piece->k, t, row_begin, kv_head, group);
    probabilities(l, t, piece->intervals, row_begin, group);
    add_to_keys(&piece->dv, l->p, l->d_o, t, row_begin, kv_head, group);
    cpu_attention_scores(l->ds, l->d_o, &piece->v, t, row_begin, kv_head, group);
    score_gradients(l, t, row_begin, group);
    add_to_keys(&piece->dk, l->ds, l->q, t, row_begin, kv_head, group);
    cblas_sgemm(
        CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)((t->row_end - t->row_begin) * group),
        (int)d, (int)(t->key_end - t->key_begin), 1.0f, l->ds, TILE_KEYS,
        (const float *)piece->k.data + t->key_row * piece->k.stride[0] +
            kv_head * piece->k.stride[1],
        (int)piece->k.stride[0], 1.0f, l->dq + (t->row_begin - row_begin) * group * d, (int)d);
}

static void begin_lines(struct lines *l, const struct attention *a, int64_t row_begin,
                        int64_t row_end, int64_t head, int64_t group)
{
    int64_t d = a->q.shape[2], line = 0;
    cpu_attention_pack(l->q, &a->q, row_begin, row_end, head, group, a->scale);
    cpu_attention_pack(l->d_o, &a->d_o, row_begin, row_end, head, group, 1.0f);
    for (int64_t row = row_begin; row < row_end; row++)
        for (int64_t g = 0; g < group; g++, line++) {
            l->lse[line] = *element_f32(&a->lse, row * a->q.shape[1] + head + g);
            l->delta[line] = *element_f32(&a->delta, row * a->q.shape[1] + head + g);
        }
    memset(l->dq, 0, (size_t)(line * d) * sizeof *l->dq);
}

static void end_lines(const struct lines *l, const struct attention *a, int64_t row_begin,
                      int64_t row_end, int64_t head, int64_t group)
{
    int64_t d = a->q.shape[2];
    const float *from = l->dq;
    for (int64_t row = row_begin; row < row_end; row++)
        for (int64_t g = 0; g < group; g++, from += d) {
            float *to = row_f32(&a->dq, row * a->q.shape[1] + head + g);
            for (int64_t j = 0; j < d; j++)
                to[j] += a->scale * from[j];
        }
}

VECTORIZED static float dot(const float *x, const float *y, int64_t d)
{
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < d; j++)
        sum += x[j] * y[j];
    return sum;
}

static void assert_gradients(const struct attention *a)
{
    assert_f32(&a->d_o, 3);
    assert_f32(&a->delta, 2);
    assert(same_shape(&a->d_o, &a->q) && same_shape(&a->delta, &a->lse));
}

void cpu_attention_delta(struct kernel_queue *queue, const struct attention *a)
{
    assert_gradients(a);
    assert(same_shape(&a->o, &a->d_o));
    if (queue->failure)
        return;
    for (int64_t i = 0; i < row_count(&a->o); i++)
        *element_f32(&a->delta, i) = dot(row_f32(&a->o, i), row_f32(&a->d_o, i), a->o.shape[2]);
}

void cpu_attention_backward(struct kernel_queue *queue, const struct attention *a)
{
    struct attention_shape shape = cpu_attention_shape(a);
    assert_gradients(a);
    assert_f32(&a->dq, 3);
    assert(same_shape(&a->dq, &a->q));
    for (int i = 0; i < a->n_pieces; i++) {
        const struct attention_piece *piece = &a->pieces[i];
        assert_f32(&piece->dk, 3);
        assert_f32(&piece->dv, 3);
        assert(same_shape(&piece->dk, &piece->k) && same_shape(&piece->dv, &piece->v));
        assert(piece->dk.stride[0] <= INT_MAX && piece->dv.stride[0] <= INT_MAX);
        (void)piece;
    }
    if (queue->failure || shape.rows == 0 || shape.heads == 0 || shape.d == 0)
        return;
    int64_t group = shape.group, d = shape.d, lines = TILE_ROWS * group;
    float *memory =
        cpu_scratch(queue, (size_t)(lines * (3 * d + 2 * TILE_KEYS + 2)) * sizeof(float));
    if (!memory)
        return;
    struct lines l = {.q = memory,
                      .d_o = memory + lines * d,
                      .dq = memory + lines * 2 * d,
                      .p = memory + lines * 3 * d,
                      .ds = memory + lines * (3 * d + TILE_KEYS),
                      .lse = memory + lines * (3 * d + 2 * TILE_KEYS),
                      .delta = memory + lines * (3 * d + 2 * TILE_KEYS + 1)};
    struct tile_list tiles[ATTENTION_PIECES] = {0};
    for (int64_t begin = 0; begin < shape.rows; begin += TILE_ROWS) {
        int64_t end = begin + TILE_ROWS < shape.rows ? begin + TILE_ROWS : shape.rows;
        size_t work = 0;
        for (int i = 0; i < a->n_pieces; i++) {
            if (!tile_list_build(&tiles[i], &a->pieces[i], begin, end)) {
                cpu_fail(queue, err_no_memory());
                goto out;
            }
            work += tiles[i].count;
        }
        if (work == 0)
            continue;
        for (int64_t kv_head = 0; kv_head < shape.kv_heads; kv_head++) {
            begin_lines(&l, a, begin, end, kv_head * group, group);
            for (int i = 0; i < a->n_pieces; i++)
                for (size_t t = 0; t < tiles[i].count; t++)
                    differentiate(&l, &a->pieces[i], &tiles[i].tile[t], begin, kv_head, group);
            end_lines(&l, a, begin, end, kv_head * group, group);
        }
    }
out:
    for (int i = 0; i < ATTENTION_PIECES; i++)
        tile_list_free(&tiles[i]);
}
