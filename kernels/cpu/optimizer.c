/* The squared norm of a gradient, and AdamW (Loshchilov and Hutter, arXiv 1711.05101). */
#include "kernels/cpu/cpu.h"

#include <math.h>

VECTORIZED static double squares(const float *x, int64_t m)
{
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < m; j++)
        sum += (double)x[j] * x[j];
    return sum;
}

void cpu_sum_squares(struct kernel_queue *q, struct tensor out, struct tensor x)
{
    assert_f32(&out, 1);
    assert_f32(&x, x.dims);
    assert(out.shape[0] == 1);
    if (q->failure)
        return;
    double sum = 0;
    for (int64_t i = 0; i < row_count(&x); i++)
        sum += squares(row_f32(&x, i), row_length(&x));
    *(float *)out.data += (float)sum;
}

struct coefficients {
    float grad_scale, beta1, beta2, eps;
    float decay;  /* lr weight_decay */
    float step;   /* lr / (1 - beta1^t) */
    float root_v; /* 1 / sqrt(1 - beta2^t) */
};

VECTORIZED static void update(float *restrict param, float *restrict m, float *restrict v,
                              const float *restrict grad, int64_t n, struct coefficients c)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * c.grad_scale;
        m[i] = c.beta1 * m[i] + (1.0f - c.beta1) * g;
        v[i] = c.beta2 * v[i] + (1.0f - c.beta2) * g * g;
        param[i] -= c.decay * param[i] + c.step * m[i] / (sqrtf(v[i]) * c.root_v + c.eps);
    }
}

void cpu_adamw(struct kernel_queue *q, struct tensor param, struct tensor m, struct tensor v,
               struct tensor grad, struct tensor copy, const struct adamw *options)
{
    assert_f32(&param, 1);
    assert_f32(&m, 1);
    assert_f32(&v, 1);
    assert_f32(&grad, 1);
    assert(same_shape(&m, &param) && same_shape(&v, &param) && same_shape(&grad, &param));
    assert(options->step >= 1);
    if (q->failure)
        return;
    double t = (double)options->step;
    struct coefficients c = {
        .grad_scale = options->grad_scale,
        .beta1 = options->beta1,
        .beta2 = options->beta2,
        .eps = options->eps,
        .decay = options->lr * options->weight_decay,
        .step = (float)(options->lr / (1.0 - pow(options->beta1, t))),
        .root_v = (float)(1.0 / sqrt(1.0 - pow(options->beta2, t))),
    };
    update(param.data, m.data, v.data, grad.data, param.shape[0], c);
    if (copy.data)
        cpu_copy(q, copy, param);
}
