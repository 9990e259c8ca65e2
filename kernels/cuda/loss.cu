/* Cross-entropy of rows of logits: loss = log(sum e^logit) - logit[label], and its gradient
 * weight (softmax - [label]) in place of the logits.
 *
 * A block a row. The first walk keeps a running maximum and the sum of exponentials below it, while
 * the vectors that come next are on their way; the second, for the gradient, finds much of the row
 * in the L2 cache. Two blocks share a multiprocessor, so that one reads while the other one meets.
 */
#include "kernels/cuda/device.cuh"

constexpr int THREADS = 512;
constexpr int AHEAD = 4; /* vectors of a thread that are on their way at a time */

/* sum e^(x - top) of what was seen. */
struct running {
    float top, sum;
};

__device__ static running joined(running a, running b)
{
    float top = fmaxf(a.top, b.top);
    if (top == -INFINITY)
        return {top, 0};
    return {top, a.sum * expf(a.top - top) + b.sum * expf(b.top - top)};
}

__device__ static running block_joined(running x, running *shared)
{
    for (int offset = WARP / 2; offset; offset /= 2)
        x = joined(x, {__shfl_xor_sync(0xffffffff, x.top, offset),
                       __shfl_xor_sync(0xffffffff, x.sum, offset)});
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = x;
    __syncthreads();
    x = threadIdx.x % WARP < THREADS / WARP ? shared[threadIdx.x % WARP] : running{-INFINITY, 0};
    for (int offset = WARP / 2; offset; offset /= 2)
        x = joined(x, {__shfl_xor_sync(0xffffffff, x.top, offset),
                       __shfl_xor_sync(0xffffffff, x.sum, offset)});
    return x;
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS, 2)
    cross_entropy_kernel(rows_of<T> logits, int64_t m, rows_of<float> loss,
                         rows_of<const int32_t> labels, rows_of<const float> weights,
                         index_fault *fault)
{
    __shared__ running shared[WARP];
    int64_t row = blockIdx.x, label = *labels.at(row);
    T *x = logits.at(row);
    if (label < 0 || label >= m) {
        if (threadIdx.x == 0)
            *fault = (unsigned long long)INDEX_LABEL << 32 | (uint32_t)label;
        return;
    }
    float at_label = f32(x[label]);
    running all = {-INFINITY, 0};
    const int64_t step = (int64_t)THREADS * V;
    vec<T, V> next[AHEAD];
    auto fetch = [&](int64_t from) {
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (from + k * step < m)
                next[k] = load<T, V>(x + from + k * step);
    };
    fetch((int64_t)threadIdx.x * V);
    for (int64_t begin = (int64_t)threadIdx.x * V; begin < m; begin += step * AHEAD) {
        vec<T, V> v[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            v[k] = next[k];
        fetch(begin + step * AHEAD);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            if (begin + k * step >= m)
                continue;
            float top = all.top, sum = 0;
#pragma unroll
            for (int j = 0; j < V; j++)
                top = fmaxf(top, f32(v[k].x[j]));
            if (top > all.top) {
                all.sum *= expf(all.top - top);
                all.top = top;
            }
            if (top == -INFINITY)
                continue;
#pragma unroll
            for (int j = 0; j < V; j++)
                sum += exp_for<T>(f32(v[k].x[j]) - top);
            all.sum += sum;
        }
    }
    all = block_joined(all, shared);
    if (threadIdx.x == 0)
        *loss.at(row) = logf(all.sum) + (all.top - at_label);
    if (!weights.data)
        return;
    float weight = *weights.at(row), factor = weight / all.sum;
    /* Backwards: what was read last is the likeliest to be still near. */
#pragma unroll 4
    for (int64_t at = (m + step - 1) / step - 1; at >= 0; at--) {
        int64_t j = at * step + (int64_t)threadIdx.x * V;
        if (j >= m)
            continue;
        vec<T, V> v = load<T, V>(x + j);
#pragma unroll
        for (int k = 0; k < V; k++) {
            float p = exp_for<T>(f32(v.x[k]) - all.top) * factor;
            v.x[k] = rounded<T>(j + k == label ? p - weight : p);
        }
        store_once(x + j, v);
    }
}

void cuda_cross_entropy(struct kernel_queue *q, struct tensor loss, struct tensor logits,
                        struct tensor labels, struct tensor weights)
{
    assert_dtype(&loss, 1, DTYPE_F32);
    assert_compute(&logits, 2);
    assert_dtype(&labels, 1, DTYPE_I32);
    assert(loss.shape[0] == logits.shape[0] && labels.shape[0] == logits.shape[0]);
    if (weights.data) {
        assert_dtype(&weights, 1, DTYPE_F32);
        assert(weights.shape[0] == logits.shape[0]);
    } else {
        weights = tensor_1d(NULL, DTYPE_F32, DEVICE_CUDA, 0);
    }
    int64_t rows = logits.shape[0];
    assert(rows <= INT32_MAX);
    if (q->failure || rows == 0)
        return;
    with_compute(logits.dtype, [&](auto t) {
        using T = decltype(t);
        auto kernel = is_wide(&logits) ? cross_entropy_kernel<T, WIDE> : cross_entropy_kernel<T, 1>;
        kernel<<<(unsigned)rows, THREADS, 0, q->stream>>>(
            rows_in<T>(&logits), logits.shape[1], elements_in<float>(&loss),
            elements_in<const int32_t>(&labels), elements_in<const float>(&weights), q->fault);
    });
    cuda_check(q, cudaGetLastError(), "cross_entropy");
}
