/* Random tensors for the tests of kernels.
 *
 * Tensors may have strides larger than their extents; the elements between the rows hold GAP, and
 * check_gaps asserts that an operation left them alone. What an operation overwrites is created
 * full of NaN, so that an element that was forgotten or read shows. free_all ends a test.
 */
#ifndef TEST_KERNELS_RANDOM_H
#define TEST_KERNELS_RANDOM_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

#define GAP 12345.0f
#define MOST_BLOCKS 256

static const struct kernels *kernels;
static struct kernel_queue *queue;
static uint64_t random_state = 1;
static void *blocks[MOST_BLOCKS];
static int n_blocks;

static inline void *take(size_t bytes)
{
    assert_true(n_blocks < MOST_BLOCKS);
    void *p = malloc(bytes ? bytes : 1);
    assert_non_null(p);
    blocks[n_blocks++] = p;
    return p;
}

static inline void free_all(void)
{
    while (n_blocks)
        free(blocks[--n_blocks]);
}

/* xorshift64* */
static inline uint64_t random_bits(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 2685821657736338717u;
}

static inline float uniform(float low, float high)
{
    return low + (high - low) * (float)(random_bits() >> 40) * 0x1p-24f;
}

/* low .. high, both included. */
static inline int64_t pick(int64_t low, int64_t high)
{
    return low + (int64_t)(random_bits() >> 16) % (high - low + 1);
}

static inline bool chance(double p)
{
    return uniform(0, 1) < p;
}

static inline int64_t rows_of(const struct tensor *t)
{
    return t->dims == 1 ? 1 : t->dims == 2 ? t->shape[0] : t->shape[0] * t->shape[1];
}

static inline int64_t row_at(const struct tensor *t, int64_t row)
{
    if (t->dims == 1)
        return 0;
    if (t->dims == 2)
        return row * t->stride[0];
    return row / t->shape[1] * t->stride[0] + row % t->shape[1] * t->stride[1];
}

/* Element `column` of row `row`, the leading dimensions collapsed. */
static inline float *at(const struct tensor *t, int64_t row, int64_t column)
{
    return (float *)t->data + row_at(t, row) + column;
}

static inline int64_t columns_of(const struct tensor *t)
{
    return t->shape[t->dims - 1];
}

/* The elements from the first to behind the last, gaps included. */
static inline int64_t span_of(const struct tensor *t)
{
    if (rows_of(t) == 0 || columns_of(t) == 0)
        return 0;
    return row_at(t, rows_of(t) - 1) + columns_of(t);
}

static inline void fill(struct tensor t, float low, float high)
{
    for (int64_t i = 0; i < rows_of(&t); i++)
        for (int64_t j = 0; j < columns_of(&t); j++)
            *at(&t, i, j) = low < high ? uniform(low, high) : low;
}

/* fp32, full of NaN, at random with gaps. A dimension of -1 is none. */
static inline struct tensor poisoned(int64_t n, int64_t m, int64_t k)
{
    struct tensor t = k >= 0   ? tensor_3d(NULL, DTYPE_F32, DEVICE_CPU, n, m, k)
                      : m >= 0 ? tensor_2d(NULL, DTYPE_F32, DEVICE_CPU, n, m)
                               : tensor_1d(NULL, DTYPE_F32, DEVICE_CPU, n);
    if (chance(0.5)) {
        if (t.dims == 3)
            t.stride[1] += pick(0, 3);
        if (t.dims >= 2)
            t.stride[0] = t.stride[1] * t.shape[1] + pick(0, 5);
    }
    int64_t span = span_of(&t);
    t.data = take((size_t)span * sizeof(float));
    for (int64_t i = 0; i < span; i++)
        ((float *)t.data)[i] = GAP;
    fill(t, NAN, NAN);
    return t;
}

static inline struct tensor random_tensor(int64_t n, int64_t m, int64_t k, float low, float high)
{
    struct tensor t = poisoned(n, m, k);
    fill(t, low, high);
    return t;
}

/* A copy with strides of its own. */
static inline struct tensor clone(struct tensor t)
{
    struct tensor c =
        poisoned(t.shape[0], t.dims > 1 ? t.shape[1] : -1, t.dims > 2 ? t.shape[2] : -1);
    for (int64_t i = 0; i < rows_of(&t); i++)
        memcpy(at(&c, i, 0), at(&t, i, 0), (size_t)columns_of(&t) * sizeof(float));
    return c;
}

static inline struct tensor random_i32(int64_t n, int64_t low, int64_t high)
{
    int32_t *data = take((size_t)n * sizeof *data);
    for (int64_t i = 0; i < n; i++)
        data[i] = (int32_t)pick(low, high);
    return tensor_1d(data, DTYPE_I32, DEVICE_CPU, n);
}

static inline void check_gaps(struct tensor t)
{
    int64_t row = 0, next = 0, rows = rows_of(&t), span = span_of(&t);
    for (int64_t i = 0; i < span; i++) {
        if (row < rows && i == row_at(&t, row))
            next = i + columns_of(&t), row++;
        if (i >= next)
            assert_true(((float *)t.data)[i] == GAP);
    }
}

/* |actual - expected| <= tolerance * (size + |expected|); a NaN is never close. */
static inline void check_close(const char *what, double actual, double expected, double tolerance,
                               double size)
{
    if (!(fabs(actual - expected) <= tolerance * (size + fabs(expected))))
        fail_msg("%s: %.9g instead of %.9g", what, actual, expected);
}

/* Against doubles in row order without gaps. */
static inline void check_tensor(const char *what, struct tensor t, const double *expected,
                                double tolerance, double size)
{
    check_gaps(t);
    for (int64_t i = 0; i < rows_of(&t); i++)
        for (int64_t j = 0; j < columns_of(&t); j++)
            check_close(what, *at(&t, i, j), *expected++, tolerance, size);
}

static inline void check_equal(const char *what, struct tensor a, struct tensor b)
{
    for (int64_t i = 0; i < rows_of(&a); i++)
        if (memcmp(at(&a, i, 0), at(&b, i, 0), (size_t)columns_of(&a) * sizeof(float)))
            fail_msg("%s differs in row %lld", what, (long long)i);
}

static inline double *doubles(int64_t n)
{
    double *d = take((size_t)n * sizeof *d);
    memset(d, 0, (size_t)n * sizeof *d);
    return d;
}

static inline void check_queue(void)
{
    struct err *e = kernels->queue_wait(queue);
    if (e)
        fail_msg("%s", err_message(e));
}

static inline int open_queue(void **state)
{
    (void)state;
    kernels = kernels_cpu();
    return kernels->queue_create(&queue) ? -1 : 0;
}

static inline int close_queue(void **state)
{
    (void)state;
    kernels->queue_destroy(queue);
    return 0;
}

#endif
