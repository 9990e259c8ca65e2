/* Cross-entropy of rows of logits: loss = log(sum e^logit) - logit[label], and its gradient
 * weight (softmax - [label]) in place of the logits. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/exp.h"

#include <math.h>

VECTORIZED static float largest(const float *x, int64_t m)
{
    float top = -INFINITY;
#pragma omp simd reduction(max : top)
    for (int64_t j = 0; j < m; j++)
        top = x[j] > top ? x[j] : top;
    return top;
}

/* A vocabulary is summed in spans, so that the fp32 partial sums stay short. */
VECTORIZED static double sum_of_exps(const float *x, float top, int64_t m)
{
    const int64_t span = 1024;
    double total = 0;
    for (int64_t begin = 0; begin < m; begin += span) {
        int64_t end = begin + span < m ? begin + span : m;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = begin; j < end; j++)
            sum += exp_f32(x[j] - top);
        total += sum;
    }
    return total;
}

VECTORIZED static void to_softmax(float *x, float top, float factor, int64_t m)
{
#pragma omp simd
    for (int64_t j = 0; j < m; j++)
        x[j] = exp_f32(x[j] - top) * factor;
}

void cpu_cross_entropy(struct kernel_queue *q, struct tensor loss, struct tensor logits,
                       struct tensor labels, struct tensor weights)
{
    assert_f32(&loss, 1);
    assert_f32(&logits, 2);
    assert(labels.dtype == DTYPE_I32 && labels.dims == 1);
    assert(loss.shape[0] == logits.shape[0] && labels.shape[0] == logits.shape[0]);
    if (weights.data) {
        assert_f32(&weights, 1);
        assert(weights.shape[0] == logits.shape[0]);
    }
    const int32_t *label = labels.data;
    const float *weight = weights.data;
    float *out = loss.data;
    int64_t m = logits.shape[1], rows = q->failure ? 0 : logits.shape[0];
    for (int64_t i = 0; i < rows; i++) {
        assert(label[i] >= 0 && label[i] < m);
        float *x = row_f32(&logits, i);
        float top = largest(x, m);
        double sum = sum_of_exps(x, top, m);
        out[i] = (float)(log(sum) + ((double)top - x[label[i]]));
        if (!weight)
            continue;
        to_softmax(x, top, weight[i] / (float)sum, m);
        x[label[i]] -= weight[i];
    }
}
