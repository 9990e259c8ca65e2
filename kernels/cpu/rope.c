/* Rotary position embedding. Angles are products in fp32, as the models were trained with; the
 * cosines and sines of a row serve all of its heads. */
#include "kernels/cpu/cpu.h"

#include <math.h>

VECTORIZED static void rotate(float *restrict x1, float *restrict x2, const float *cosine,
                              const float *sine, int64_t half)
{
    for (int64_t j = 0; j < half; j++) {
        float a = x1[j], b = x2[j];
        x1[j] = a * cosine[j] - b * sine[j];
        x2[j] = b * cosine[j] + a * sine[j];
    }
}

void cpu_rope(struct kernel_queue *q, struct tensor x, struct tensor positions,
              struct tensor inv_freq, bool inverse)
{
    assert_f32(&x, 3);
    assert_f32(&inv_freq, 1);
    assert(positions.dtype == DTYPE_I32 && positions.dims == 1);
    assert(positions.shape[0] == x.shape[0]);
    int64_t rows = x.shape[0], heads = x.shape[1], half = inv_freq.shape[0];
    assert(x.shape[2] == 2 * half);
    if (q->failure || rows == 0 || half == 0)
        return;
    float *cosine = cpu_scratch(q, (size_t)half * 2 * sizeof *cosine);
    if (!cosine)
        return;
    float *sine = cosine + half;
    const int32_t *position = positions.data;
    const float *frequency = inv_freq.data;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < half; j++) {
            float angle = (float)position[i] * frequency[j];
            cosine[j] = cosf(angle);
            sine[j] = inverse ? -sinf(angle) : sinf(angle);
        }
        for (int64_t h = 0; h < heads; h++) {
            float *head = row_f32(&x, i * heads + h);
            rotate(head, head + half, cosine, sine, half);
        }
    }
}
