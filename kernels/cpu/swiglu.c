/* SwiGLU: out = silu(gate) up, silu(g) = g s with s = 1 / (1 + e^-g).
 * d silu / d g = s (1 + g (1 - s)). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp.h"

VECTORIZED static void forward(float *out, const float *gate, const float *up, int64_t m)
{
#pragma omp simd
    for (int64_t j = 0; j < m; j++)
        out[j] = gate[j] / (1.0f + exp_f32(-gate[j])) * up[j];
}

VECTORIZED static void backward(float *dgate, float *dup, const float *dout, const float *gate,
                                const float *up, int64_t m)
{
#pragma omp simd
    for (int64_t j = 0; j < m; j++) {
        float g = gate[j], d = dout[j], u = up[j];
        float s = 1.0f / (1.0f + exp_f32(-g));
        dgate[j] = d * u * s * (1.0f + g * (1.0f - s));
        dup[j] = d * g * s;
    }
}

void cpu_swiglu_forward(struct kernel_queue *q, struct tensor out, struct tensor gate,
                        struct tensor up)
{
    assert_f32(&out, 2);
    assert_f32(&gate, 2);
    assert_f32(&up, 2);
    assert(same_shape(&out, &gate) && same_shape(&out, &up));
    int64_t rows = q->failure ? 0 : out.shape[0];
    for (int64_t i = 0; i < rows; i++)
        forward(row_f32(&out, i), row_f32(&gate, i), row_f32(&up, i), out.shape[1]);
}

void cpu_swiglu_backward(struct kernel_queue *q, struct tensor dgate, struct tensor dup,
                         struct tensor dout, struct tensor gate, struct tensor up)
{
    assert_f32(&dgate, 2);
    assert_f32(&dup, 2);
    assert_f32(&dout, 2);
    assert_f32(&gate, 2);
    assert_f32(&up, 2);
    assert(same_shape(&dgate, &gate) && same_shape(&dup, &gate));
    assert(same_shape(&dout, &gate) && same_shape(&up, &gate));
    int64_t rows = q->failure ? 0 : gate.shape[0];
    for (int64_t i = 0; i < rows; i++)
        backward(row_f32(&dgate, i), row_f32(&dup, i), row_f32(&dout, i), row_f32(&gate, i),
                 row_f32(&up, i), gate.shape[1]);
}
