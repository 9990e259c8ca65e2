/* Sums over rows: partial sums of blocks, added up in fixed order; the bias of a linear layer; the
 * squared norm of a gradient. */
#include "kernels/cuda/device.cuh"

/* Block of WARP columns; row y of the block takes parts y, y + blockDim.y, ... */
__global__ void partial_sums_kernel(float *out, const float *part, int64_t parts, int64_t m)
{
    __shared__ double sums[WARP][WARP + 1];
    int64_t j = (int64_t)blockIdx.x * WARP + threadIdx.x;
    double sum = 0;
    if (j < m)
        for (int64_t p = threadIdx.y; p < parts; p += blockDim.y)
            sum += part[p * m + j];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y || j >= m)
        return;
    for (int y = 1; y < WARP; y++)
        sum += sums[y][threadIdx.x];
    out[j] += (float)sum;
}

void add_partial_sums(struct kernel_queue *q, float *out, const float *part, int64_t parts,
                      int64_t m, const char *what)
{
    partial_sums_kernel<<<(unsigned)((m + WARP - 1) / WARP), dim3(WARP, WARP), 0, q->stream>>>(
        out, part, parts, m);
    cuda_check(q, cudaGetLastError(), what);
}

/* ---- Bias ---- */

template <class T> struct bias_op {
    rows_of<T> x;
    const T *bias;

    template <int V> struct in {
        vec<T, V> x, bias;
    };
    template <int V> __device__ in<V> load(int64_t row, int64_t column) const
    {
        return {::load<T, V>(x.at(row) + column), ::load<T, V>(bias + column)};
    }
    template <int V> __device__ void store(int64_t row, int64_t column, in<V> &v) const
    {
#pragma unroll
        for (int j = 0; j < V; j++)
            v.x.x[j] = rounded<T>(f32(v.x.x[j]) + f32(v.bias.x[j]));
        ::store(x.at(row) + column, v.x);
    }
};

void cuda_bias_forward(struct kernel_queue *q, struct tensor x, struct tensor bias)
{
    assert_compute(&x, 2);
    assert_dtype(&bias, 1, x.dtype);
    assert(bias.shape[0] == x.shape[1]);
    with_compute(x.dtype, [&](auto t) {
        using T = decltype(t);
        bias_op<T> op = {rows_in<T>(&x), (const T *)bias.data};
        each(q, op, x.shape[0], x.shape[1], is_wide(&x) && is_wide(&bias), "bias_forward");
    });
}

/* Block (columns, slab of rows): part[slab] = the columns' sums over the slab. */
template <class T, int V>
__global__ void __launch_bounds__(BLOCK)
    column_sums_kernel(float *part, rows_of<const T> x, int64_t rows, int64_t m, int64_t slab)
{
    constexpr int GROUPS = BLOCK / WARP;
    __shared__ float sums[GROUPS][WARP * V];
    int64_t column = ((int64_t)blockIdx.x * WARP + threadIdx.x) * V;
    int64_t begin = blockIdx.y * slab, end = begin + slab < rows ? begin + slab : rows;
    float sum[V] = {};
    if (column < m) {
#pragma unroll 4
        for (int64_t i = begin + threadIdx.y; i < end; i += GROUPS) {
            vec<T, V> v = load<T, V>(x.at(i) + column);
#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] += f32(v.x[j]);
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++)
        sums[threadIdx.y][j * WARP + threadIdx.x] = sum[j];
    __syncthreads();
    if (threadIdx.y || column >= m)
        return;
#pragma unroll
    for (int j = 0; j < V; j++) {
        for (int y = 1; y < GROUPS; y++)
            sum[j] += sums[y][j * WARP + threadIdx.x];
        part[blockIdx.y * m + column + j] = sum[j];
    }
}

template <class T, int V>
static void column_sums(struct kernel_queue *q, float *out, const struct tensor *x)
{
    int64_t rows = x->shape[0], m = x->shape[1];
    int64_t across = (m + WARP * V - 1) / (WARP * V);
    int64_t slabs = 8 * (int64_t)cuda_multiprocessors() / across + 1;
    slabs = slabs < rows ? slabs : rows;
    int64_t slab = (rows + slabs - 1) / slabs;
    slabs = (rows + slab - 1) / slab;
    float *part = (float *)cuda_scratch(q, (size_t)(slabs * m) * sizeof *part);
    if (!part)
        return;
    column_sums_kernel<T, V>
        <<<dim3((unsigned)across, (unsigned)slabs), dim3(WARP, BLOCK / WARP), 0, q->stream>>>(
            part, rows_in<const T>(x), rows, m, slab);
    cuda_check(q, cudaGetLastError(), "bias_backward");
    add_partial_sums(q, out, part, slabs, m, "bias_backward");
}

void cuda_bias_backward(struct kernel_queue *q, struct tensor dbias, struct tensor dx)
{
    assert_dtype(&dbias, 1, DTYPE_F32);
    assert_compute(&dx, 2);
    assert(dbias.shape[0] == dx.shape[1]);
    if (q->failure || dx.shape[0] == 0 || dx.shape[1] == 0)
        return;
    with_compute(dx.dtype, [&](auto t) {
        using T = decltype(t);
        if (is_wide(&dx))
            column_sums<T, WIDE>(q, (float *)dbias.data, &dx);
        else
            column_sums<T, 1>(q, (float *)dbias.data, &dx);
    });
}

/* ---- Squares ---- */

template <class T, int V>
__global__ void __launch_bounds__(BLOCK)
    squares_kernel(double *part, rows_of<const T> x, int64_t rows, int64_t m)
{
    __shared__ double shared[WARP];
    int64_t stride = (int64_t)gridDim.x * BLOCK * V;
    double sum = 0;
    for (int64_t i = 0; i < rows; i++) {
        const T *row = x.at(i);
#pragma unroll 4
        for (int64_t j = ((int64_t)blockIdx.x * BLOCK + threadIdx.x) * V; j < m; j += stride) {
            vec<T, V> v = load<T, V>(row + j);
#pragma unroll
            for (int k = 0; k < V; k++) {
                double value = f32(v.x[k]);
                sum += value * value;
            }
        }
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(BLOCK)
    squares_total_kernel(float *out, const double *part, int parts)
{
    __shared__ double shared[WARP];
    double sum = 0;
    for (int p = threadIdx.x; p < parts; p += BLOCK)
        sum += part[p];
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0)
        *out += (float)sum;
}

void cuda_sum_squares(struct kernel_queue *q, struct tensor out, struct tensor x)
{
    assert_dtype(&out, 1, DTYPE_F32);
    assert_compute(&x, x.dims);
    assert(out.shape[0] == 1);
    struct tensor *one[] = {&x};
    flatten(one);
    if (q->failure || row_count(&x) == 0 || row_length(&x) == 0)
        return;
    int blocks = 8 * cuda_multiprocessors();
    double *part = (double *)cuda_scratch(q, (size_t)blocks * sizeof *part);
    if (!part)
        return;
    with_compute(x.dtype, [&](auto t) {
        using T = decltype(t);
        rows_of<const T> rows = rows_in<const T>(&x);
        if (is_wide(&x))
            squares_kernel<T, WIDE>
                <<<blocks, BLOCK, 0, q->stream>>>(part, rows, row_count(&x), row_length(&x));
        else
            squares_kernel<T, 1>
                <<<blocks, BLOCK, 0, q->stream>>>(part, rows, row_count(&x), row_length(&x));
    });
    cuda_check(q, cudaGetLastError(), "sum_squares");
    squares_total_kernel<<<1, BLOCK, 0, q->stream>>>((float *)out.data, part, blocks);
    cuda_check(q, cudaGetLastError(), "sum_squares");
}
