/* RMSNorm over the last dimension.
 *
 * With xhat = x rstd: y = xhat w, dw = sum over rows of dy xhat, and
 * dx = rstd (dy w - xhat mean(dy w xhat)).
 */
#include "kernels/cpu/cpu.h"

#include <math.h>

VECTORIZED static float normalize(float *y, const float *x, const float *w, int64_t m, float eps)
{
    float squares = 0;
#pragma omp simd reduction(+ : squares)
    for (int64_t j = 0; j < m; j++)
        squares += x[j] * x[j];
    float rstd = 1.0f / sqrtf(squares / (float)m + eps);
    for (int64_t j = 0; j < m; j++)
        y[j] = x[j] * rstd * w[j];
    return rstd;
}

VECTORIZED static void denormalize(float *restrict dx, double *restrict dw, const float *dy,
                                   const float *x, const float *w, int64_t m, float rstd)
{
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < m; j++)
        dot += dy[j] * w[j] * x[j];
    float along = dot * rstd * rstd / (float)m;
    for (int64_t j = 0; j < m; j++)
        dx[j] += rstd * (dy[j] * w[j] - x[j] * along);
    for (int64_t j = 0; j < m; j++)
        dw[j] += dy[j] * (x[j] * rstd);
}

static void assert_norm(const struct tensor *x, const struct tensor *w, const struct tensor *rstd)
{
    assert(x->dims >= 2);
    assert_f32(x, x->dims);
    assert_f32(w, 1);
    assert_f32(rstd, x->dims - 1);
    assert(w->shape[0] == row_length(x));
    for (int i = 0; i < rstd->dims; i++)
        assert(rstd->shape[i] == x->shape[i]);
}

void cpu_rmsnorm_forward(struct kernel_queue *q, struct tensor y, struct tensor rstd,
                         struct tensor x, struct tensor w, float eps)
{
    assert_norm(&x, &w, &rstd);
    assert(y.dtype == DTYPE_F32 && same_shape(&y, &x));
    int64_t rows = q->failure ? 0 : row_count(&x);
    for (int64_t i = 0; i < rows; i++)
        *element_f32(&rstd, i) =
            normalize(row_f32(&y, i), row_f32(&x, i), w.data, row_length(&x), eps);
}

void cpu_rmsnorm_backward(struct kernel_queue *q, struct tensor dx, struct tensor dw,
                          struct tensor dy, struct tensor x, struct tensor w, struct tensor rstd)
{
    assert_norm(&x, &w, &rstd);
    assert_f32(&dw, 1);
    assert(dx.dtype == DTYPE_F32 && same_shape(&dx, &x));
    assert(dy.dtype == DTYPE_F32 && same_shape(&dy, &x) && same_shape(&dw, &w));
    int64_t rows = row_count(&x), m = row_length(&x);
    if (q->failure || rows == 0 || m == 0)
        return;
    double *sum = cpu_scratch(q, (size_t)m * sizeof *sum);
    if (!sum)
        return;
    for (int64_t j = 0; j < m; j++)
        sum[j] = 0;
    for (int64_t i = 0; i < rows; i++)
        denormalize(row_f32(&dx, i), sum, row_f32(&dy, i), row_f32(&x, i), w.data, m,
                    *element_f32(&rstd, i));
    float *out = dw.data;
    for (int64_t j = 0; j < m; j++)
        out[j] += (float)sum[j];
}
