/* What the kernels of the backend are made of: vectors of 16 bytes, views of rows, sums over lanes
 * and blocks, and `each`, which walks a tensor element by element at the speed of memory.
 */
#ifndef KERNELS_CUDA_DEVICE_CUH
#define KERNELS_CUDA_DEVICE_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/cuda.h"

using bf16 = __nv_bfloat16;

/* Elements that a thread moves at a time where everything is aligned: 16 bytes of BF16, twice 16 of
 * F32. */
constexpr int WIDE = 8;
constexpr int WARP = 32;
constexpr int BLOCK = 256;

/* V elements, loaded and stored 16 bytes at a time. */
template <class T, int V> struct alignas(sizeof(T) * V < 16 ? sizeof(T) * V : 16) vec {
    T x[V];
};

template <class T, int V> __device__ inline vec<T, V> load(const T *p)
{
    return *reinterpret_cast<const vec<T, V> *>(p);
}

template <class T, int V> __device__ inline void store(T *p, const vec<T, V> &v)
{
    *reinterpret_cast<vec<T, V> *>(p) = v;
}

/* For what is not read again soon: it leaves the L2 cache first. */
template <class T, int V> __device__ inline void store_once(T *p, const vec<T, V> &v)
{
    if constexpr (sizeof v % sizeof(uint4) == 0) {
#pragma unroll
        for (size_t i = 0; i < sizeof v / sizeof(uint4); i++)
            __stcs((uint4 *)p + i, ((const uint4 *)&v)[i]);
    } else {
        store(p, v);
    }
}

__device__ inline float f32(float x)
{
    return x;
}
__device__ inline float f32(bf16 x)
{
    return __bfloat162float(x);
}
__device__ inline float f32(__half x)
{
    return __half2float(x);
}

template <class T> __device__ inline T rounded(float x);
template <> __device__ inline float rounded<float>(float x)
{
    return x;
}
template <> __device__ inline bf16 rounded<bf16>(float x)
{
    return __float2bfloat16_rn(x);
}
template <> __device__ inline __half rounded<__half>(float x)
{
    return __float2half_rn(x);
}

/* exp and 1 / x as exactly as T can tell. */
template <class T> __device__ inline float exp_for(float x);
template <> __device__ inline float exp_for<float>(float x)
{
    return expf(x);
}
template <> __device__ inline float exp_for<bf16>(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f)); /* 2^(x log2 e) */
    return y;
}
template <class T> __device__ inline float inverse_for(float x);
template <> __device__ inline float inverse_for<float>(float x)
{
    return 1.0f / x;
}
template <> __device__ inline float inverse_for<bf16>(float x)
{
    return __fdividef(1.0f, x);
}

/* ---- Rows of a tensor ---- */

/* The rows of a tensor of one to three dimensions, the leading ones collapsed into one count. */
template <class T> struct rows_of {
    T *data;
    int64_t stride;              /* of the first dimension */
    int64_t inner, inner_stride; /* rows in one of the first dimension, and between them */

    __device__ T *at(int64_t row) const
    {
        if (inner == 1)
            return data + row * stride;
        int64_t outer = row <= UINT32_MAX && inner <= UINT32_MAX
                            ? (int64_t)((uint32_t)row / (uint32_t)inner)
                            : row / inner;
        return data + outer * stride + (row - outer * inner) * inner_stride;
    }
};

static inline int64_t row_length(const struct tensor *t)
{
    return t->shape[t->dims - 1];
}

static inline int64_t row_count(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->dims - 1; i++)
        n *= t->shape[i];
    return n;
}

/* The `dims` leading dimensions of t as rows. */
template <class T> static rows_of<T> leading_rows(const struct tensor *t, int dims)
{
    T *data = (T *)t->data;
    if (dims == 0)
        return {data, 0, 1, 0};
    if (dims == 1)
        return {data, t->stride[0], 1, 0};
    if (t->stride[0] == t->shape[1] * t->stride[1])
        return {data, t->stride[1], 1, 0};
    return {data, t->stride[0], t->shape[1], t->stride[1]};
}

template <class T> static rows_of<T> rows_in(const struct tensor *t)
{
    return leading_rows<T>(t, t->dims - 1);
}

/* Every element a row: of statistics, one for each row of another tensor. */
template <class T> static rows_of<T> elements_in(const struct tensor *t)
{
    return leading_rows<T>(t, t->dims);
}

static inline bool same_shape(const struct tensor *a, const struct tensor *b)
{
    if (a->dims != b->dims)
        return false;
    for (int i = 0; i < a->dims; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

static inline bool is_float(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

/* F32 or BF16, of so many dimensions. */
static inline void assert_compute(const struct tensor *t, int dims)
{
    assert(t->device == DEVICE_CUDA);
    assert(t->dtype == DTYPE_F32 || t->dtype == DTYPE_BF16);
    assert(t->dims == dims && t->stride[dims - 1] == 1);
    (void)t, (void)dims;
}

static inline void assert_dtype(const struct tensor *t, int dims, enum dtype dtype)
{
    assert(t->device == DEVICE_CUDA);
    assert(t->dtype == dtype && t->dims == dims && t->stride[dims - 1] == 1);
    (void)t, (void)dims, (void)dtype;
}

/* Whether every row begins on 16 bytes and holds a multiple of WIDE elements. */
static inline bool is_wide(const struct tensor *t)
{
    if ((uintptr_t)t->data % 16 || row_length(t) % WIDE)
        return false;
    for (int i = 0; i < t->dims - 1; i++)
        if (t->shape[i] > 1 && t->stride[i] * (int64_t)dtype_size(t->dtype) % 16)
            return false;
    return true;
}

/* Sees tensors of one shape with as few dimensions as all their strides allow: rows that follow
 * each other without a gap become one. */
template <int N> static void flatten(struct tensor *(&all)[N])
{
    while (all[0]->dims > 1) {
        int last = all[0]->dims - 1;
        for (struct tensor *t : all)
            if (t->shape[last - 1] > 1 && t->stride[last - 1] != t->shape[last])
                return;
        for (struct tensor *t : all) {
            t->shape[last - 1] *= t->shape[last];
            t->stride[last - 1] = 1;
            t->dims = last;
        }
    }
}

/* Calls f with a value of the type that dtype names. */
template <class F> static void with_compute(enum dtype dtype, F f)
{
    if (dtype == DTYPE_F32)
        f(float());
    else
        f(bf16());
}

template <class F> static void with_float(enum dtype dtype, F f)
{
    if (dtype == DTYPE_F16)
        f(__half());
    else
        with_compute(dtype, f);
}

/* ---- Sums ---- */

/* Over `lanes` neighbours, a power of two up to a warp; everyone gets it. All lanes of the warp
 * must come. */
template <class N> __device__ inline N lanes_sum(N x, int lanes)
{
    for (int offset = lanes / 2; offset; offset /= 2)
        x += __shfl_xor_sync(0xffffffff, x, offset);
    return x;
}

/* Over a block of whole warps; everyone gets it. `shared` [WARP] is not to be used again before the
 * block has met: callers in a loop give two in turn. */
template <class N> __device__ inline N block_sum(N x, N *shared)
{
    x = lanes_sum(x, WARP);
    if (threadIdx.x % WARP == 0)
        shared[threadIdx.x / WARP] = x;
    __syncthreads();
    N part = threadIdx.x % WARP < blockDim.x / WARP ? shared[threadIdx.x % WARP] : N(0);
    return lanes_sum(part, WARP);
}

/* out[j] += sum over parts of part[p, j], in fixed order; part [parts, m] contiguous. */
void add_partial_sums(struct kernel_queue *q, float *out, const float *part, int64_t parts,
                      int64_t m, const char *what);

/* ---- Element by element ---- */

/* Op has: a type in<V>, what it reads; load<V>(row, column), which reads V elements, and
 * store<V>(row, column, in), which computes and writes. A thread loads all its R x C vectors before
 * it stores the first. */
template <int V, int R, int C, class Op>
__global__ void __launch_bounds__(BLOCK)
    each_kernel(const Op op, int64_t rows, int64_t columns, unsigned segments)
{
    int64_t row = (int64_t)(blockIdx.x / segments) * (blockDim.y * R) + threadIdx.y;
    int64_t column = ((int64_t)(blockIdx.x % segments) * (blockDim.x * C) + threadIdx.x) * V;
    typename Op::template in<V> in[R * C];
#pragma unroll
    for (int k = 0; k < R * C; k++) {
        int64_t i = row + k / C * blockDim.y, j = column + (int64_t)(k % C) * blockDim.x * V;
        if (i < rows && j < columns)
            in[k] = op.template load<V>(i, j);
    }
#pragma unroll
    for (int k = 0; k < R * C; k++) {
        int64_t i = row + k / C * blockDim.y, j = column + (int64_t)(k % C) * blockDim.x * V;
        if (i < rows && j < columns)
            op.template store<V>(i, j, in[k]);
    }
}

template <int V, int R, int C, class Op>
static void each_shaped(struct kernel_queue *q, const Op &op, int64_t rows, int64_t columns,
                        unsigned width, const char *what)
{
    dim3 block(width, BLOCK / width);
    int64_t per_row = (int64_t)width * C * V, per_column = (int64_t)block.y * R;
    int64_t segments = (columns + per_row - 1) / per_row;
    int64_t blocks = (rows + per_column - 1) / per_column * segments;
    assert(blocks <= INT32_MAX);
    each_kernel<V, R, C>
        <<<(unsigned)blocks, block, 0, q->stream>>>(op, rows, columns, (unsigned)segments);
    cuda_check(q, cudaGetLastError(), what);
}

/* Two vectors a thread: side by side in long rows, one below the other in short ones. */
template <int V, class Op>
static void each_by(struct kernel_queue *q, const Op &op, int64_t rows, int64_t columns,
                    const char *what)
{
    unsigned width = 1;
    while (width < BLOCK && (int64_t)width * V < columns)
        width *= 2;
    if ((int64_t)width * V < columns)
        each_shaped<V, 1, 2>(q, op, rows, columns, width, what);
    else
        each_shaped<V, 2, 1>(q, op, rows, columns, width, what);
}

/* wide: every pointer that op reads or writes with a vector of WIDE elements is aligned for it. */
template <class Op>
static void each(struct kernel_queue *q, const Op &op, int64_t rows, int64_t columns, bool wide,
                 const char *what)
{
    if (q->failure || rows == 0 || columns == 0)
        return;
    if (wide)
        each_by<WIDE>(q, op, rows, columns, what);
    else
        each_by<1>(q, op, rows, columns, what);
}

#endif
