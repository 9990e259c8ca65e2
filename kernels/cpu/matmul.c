/* Matrix products through OpenBLAS, and the bias of a linear layer. */
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <limits.h>

/* BLAS counts in int and wants a leading dimension of at least the row's length, also where there
 * is one row or none and the stride means nothing. */
static int leading(const struct tensor *t)
{
    int64_t least = t->shape[1] > 1 ? t->shape[1] : 1;
    return (int)(t->shape[0] > 1 ? t->stride[0] : least);
}

void cpu_matmul(struct kernel_queue *q, struct tensor c, struct tensor a, bool transpose_a,
                struct tensor b, bool transpose_b, float alpha, float beta)
{
    assert_f32(&c, 2);
    assert_f32(&a, 2);
    assert_f32(&b, 2);
    int64_t n = c.shape[0], m = c.shape[1], inner = a.shape[transpose_a ? 0 : 1];
    assert(a.shape[transpose_a ? 1 : 0] == n);
    assert(b.shape[transpose_b ? 1 : 0] == inner && b.shape[transpose_b ? 0 : 1] == m);
    assert(n <= INT_MAX && m <= INT_MAX && inner <= INT_MAX);
    assert(a.stride[0] <= INT_MAX && b.stride[0] <= INT_MAX && c.stride[0] <= INT_MAX);
    if (q->failure || n == 0 || m == 0)
        return;
    cblas_sgemm(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans,
                transpose_b ? CblasTrans : CblasNoTrans, (int)n, (int)m, (int)inner, alpha, a.data,
                leading(&a), b.data, leading(&b), beta, c.data, leading(&c));
}

VECTORIZED static void add_to_rows(float *x, int64_t stride, const float *bias, int64_t n,
                                   int64_t m)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++)
            x[i * stride + j] += bias[j];
}

void cpu_bias_forward(struct kernel_queue *q, struct tensor x, struct tensor bias)
{
    assert_f32(&x, 2);
    assert_f32(&bias, 1);
    assert(bias.shape[0] == x.shape[1]);
    if (!q->failure)
        add_to_rows(x.data, x.stride[0], bias.data, x.shape[0], x.shape[1]);
}

VECTORIZED static void sum_rows(double *restrict sum, const float *x, int64_t stride, int64_t n,
                                int64_t m)
{
    for (int64_t j = 0; j < m; j++)
        sum[j] = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < m; j++)
            sum[j] += x[i * stride + j];
}

void cpu_bias_backward(struct kernel_queue *q, struct tensor dbias, struct tensor dx)
{
    assert_f32(&dbias, 1);
    assert_f32(&dx, 2);
    assert(dbias.shape[0] == dx.shape[1]);
    int64_t m = dx.shape[1];
    if (q->failure || m == 0)
        return;
    double *sum = cpu_scratch(q, (size_t)m * sizeof *sum);
    if (!sum)
        return;
    sum_rows(sum, dx.data, dx.stride[0], dx.shape[0], m);
    float *out = dbias.data;
    for (int64_t j = 0; j < m; j++)
        out[j] += (float)sum[j];
}
