/* dst[index[i]] += src[i], in an order that does not depend on timing.
 *
 * The indices are sorted, equal ones in the order in which they stand, and the sorted list is cut
 * into pieces of PIECE. A piece sums its runs of equal indices one after the other. A run that lies
 * within a piece goes into its row of dst at once; one that crosses a border leaves a partial sum
 * for each piece it touches, and the second kernel adds those up in order. So a token that fills
 * half a batch, as a mask does, is summed by many blocks, and no addition is atomic.
 */
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/device.cuh"

#define PIECE 64
#define AHEAD 8 /* rows of a piece that are on their way at a time */

struct sorted {
    const uint32_t *row;    /* ascending; `none` and above: to be skipped */
    const uint32_t *source; /* i */
    int64_t n;
    uint32_t none;

    __device__ bool same(int64_t a, int64_t b) const
    {
        return a >= 0 && b < n && row[a] == row[b];
    }
};

__global__ void keys_kernel(const int32_t *index, int64_t n, uint32_t none, uint32_t *key,
                            uint32_t *value, index_fault *fault)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n)
        return;
    int32_t row = index[i];
    if (row >= (int64_t)none)
        *fault = (unsigned long long)INDEX_SCATTER << 32 | (uint32_t)row;
    key[i] = row < 0 || row >= (int64_t)none ? none : (uint32_t)row;
    value[i] = (uint32_t)i;
}

template <class D, int V> __device__ static void add_to(D *p, const float (&sum)[V])
{
    vec<D, V> x = load<D, V>(p);
#pragma unroll
    for (int j = 0; j < V; j++)
        x.x[j] = rounded<D>(f32(x.x[j]) + sum[j]);
    store(p, x);
}

template <int V> __device__ static void put(float *p, const float (&sum)[V])
{
    vec<float, V> x;
#pragma unroll
    for (int j = 0; j < V; j++)
        x.x[j] = sum[j];
    store(p, x);
}

/* Block (piece, columns). head [pieces, m]: the sum of a run that began in an earlier piece; tail:
 * of one that goes on in the next. */
template <class D, class S, int V>
__global__ void pieces_kernel(rows_of<D> dst, rows_of<const S> src, sorted list, int64_t parts,
                              int64_t m, float *head, float *tail)
{
    __shared__ uint32_t rows[PIECE], sources[PIECE];
    int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * V, piece = blockIdx.x;
    int64_t begin = piece * PIECE;
    int n = begin + PIECE < list.n ? PIECE : (int)(list.n - begin);
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        rows[i] = list.row[begin + i];
        sources[i] = list.source[begin + i];
    }
    __syncthreads();
    if (column >= m)
        return;
    int64_t part = column / (m / parts), within = column - part * (m / parts);
    bool from_before = list.same(begin - 1, begin), goes_on = list.same(begin + n - 1, begin + n);
    float sum[V] = {};
    for (int at = 0; at < n; at += AHEAD) {
        vec<S, V> x[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (at + k < n && rows[at + k] < list.none)
                x[k] = load<S, V>(src.at(sources[at + k] * parts + part) + within);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            int i = at + k;
            if (i >= n || rows[i] >= list.none)
                return;
#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] += f32(x[k].x[j]);
            if (i + 1 < n && rows[i] == rows[i + 1])
                continue;
            if (from_before)
                put<V>(head + piece * m + column, sum);
            else if (i + 1 == n && goes_on)
                put<V>(tail + piece * m + column, sum);
            else
                add_to<D, V>(dst.at(rows[i] * parts + part) + within, sum);
            from_before = false;
#pragma unroll
            for (int j = 0; j < V; j++)
                sum[j] = 0;
        }
    }
}

/* Block (piece, columns): adds up the run that begins in this piece and ends in a later one. */
template <class D, int V>
__global__ void borders_kernel(rows_of<D> dst, sorted list, int64_t parts, int64_t m,
                               const float *head, const float *tail)
{
    int64_t column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * V, piece = blockIdx.x;
    int64_t begin = piece * PIECE, end = begin + PIECE;
    if (column >= m || end >= list.n || !list.same(end - 1, end) || list.row[end] >= list.none)
        return;
    if (list.same(begin - 1, end)) /* it began before */
        return;
    /* The last piece that begins with the run: by halving, since it may be far. */
    uint32_t row = list.row[end];
    int64_t last = piece + 1, beyond = (list.n + PIECE - 1) / PIECE;
    while (beyond - last > 1) {
        int64_t middle = last + (beyond - last) / 2;
        if (list.row[middle * PIECE] == row)
            last = middle;
        else
            beyond = middle;
    }
    int64_t part = column / (m / parts), within = column - part * (m / parts);
    float sum[V];
    vec<float, V> x = load<float, V>(tail + piece * m + column);
#pragma unroll
    for (int j = 0; j < V; j++)
        sum[j] = x.x[j];
#pragma unroll 8
    for (int64_t at = piece + 1; at <= last; at++) {
        x = load<float, V>(head + at * m + column);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum[j] += x.x[j];
    }
    add_to<D, V>(dst.at((int64_t)row * parts + part) + within, sum);
}

/* Scratch memory in its parts. */
struct memory {
    uint32_t *key[2], *value[2];
    float *head, *tail;
    void *sort;
    size_t sort_bytes;
};

static int64_t pieces_of(int64_t n)
{
    return (n + PIECE - 1) / PIECE;
}

static bool take_memory(struct kernel_queue *q, int64_t n, int64_t m, int bits, struct memory *out)
{
    const size_t alignment = 256;
    size_t index_bytes = (size_t)n * sizeof(uint32_t);
    size_t sum_bytes = (size_t)(pieces_of(n) * m) * sizeof(float);
    out->sort_bytes = 0;
    cudaError_t answer = cub::DeviceRadixSort::SortPairs(
        nullptr, out->sort_bytes, (uint32_t *)nullptr, (uint32_t *)nullptr, (uint32_t *)nullptr,
        (uint32_t *)nullptr, n, 0, bits, q->stream);
    if (answer != cudaSuccess) {
        cuda_check(q, answer, "scatter_add_rows");
        return false;
    }
    void **parts[] = {(void **)&out->key[0],
                      (void **)&out->key[1],
                      (void **)&out->value[0],
                      (void **)&out->value[1],
                      (void **)&out->head,
                      (void **)&out->tail,
                      &out->sort};
    size_t bytes[] = {index_bytes, index_bytes, index_bytes,    index_bytes,
                      sum_bytes,   sum_bytes,   out->sort_bytes};
    size_t total = 0;
    for (size_t b : bytes)
        total += (b + alignment - 1) / alignment * alignment;
    char *at = (char *)cuda_scratch(q, total);
    if (!at)
        return false;
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
        *parts[i] = at;
        at += (bytes[i] + alignment - 1) / alignment * alignment;
    }
    return true;
}

template <class D, class S, int V>
static void sum_runs(struct kernel_queue *q, const struct tensor *dst, const struct tensor *src,
                     const sorted &list, const struct memory *memory)
{
    int64_t parts = src->dims == 3 ? src->shape[1] : 1, m = parts * row_length(src);
    unsigned width = 32;
    while (width < BLOCK && (int64_t)width * V < m)
        width *= 2;
    int64_t segments = (m + (int64_t)width * V - 1) / ((int64_t)width * V);
    assert(segments <= UINT16_MAX);
    dim3 grid((unsigned)pieces_of(list.n), (unsigned)segments);
    pieces_kernel<D, S, V><<<grid, width, 0, q->stream>>>(
        rows_in<D>(dst), rows_in<const S>(src), list, parts, m, memory->head, memory->tail);
    cuda_check(q, cudaGetLastError(), "scatter_add_rows");
    borders_kernel<D, V><<<grid, width, 0, q->stream>>>(rows_in<D>(dst), list, parts, m,
                                                        memory->head, memory->tail);
    cuda_check(q, cudaGetLastError(), "scatter_add_rows");
}

void cuda_scatter_add_rows(struct kernel_queue *q, struct tensor dst, struct tensor src,
                           struct tensor rows)
{
    assert_dtype(&rows, 1, DTYPE_I32);
    assert(src.dims >= 2 && dst.dims == src.dims);
    assert_compute(&dst, src.dims);
    assert_compute(&src, src.dims);
    assert(dst.dtype == src.dtype || dst.dtype == DTYPE_F32);
    assert(src.shape[0] == rows.shape[0] && dst.shape[1] == src.shape[1]);
    assert(dst.dims == 2 || dst.shape[2] == src.shape[2]);
    int64_t n = rows.shape[0], m = src.shape[1] * (src.dims == 3 ? src.shape[2] : 1);
    assert(n <= INT32_MAX && dst.shape[0] <= INT32_MAX);
    if (q->failure || n == 0 || m == 0)
        return;
    uint32_t none = (uint32_t)dst.shape[0];
    int bits = 1;
    while (bits < 32 && none >> bits)
        bits++;
    struct memory memory;
    if (!take_memory(q, n, m, bits, &memory))
        return;
    keys_kernel<<<(unsigned)((n + BLOCK - 1) / BLOCK), BLOCK, 0, q->stream>>>(
        (const int32_t *)rows.data, n, none, memory.key[0], memory.value[0], q->fault);
    cuda_check(q, cudaGetLastError(), "scatter_add_rows");
    cuda_check(q,
               cub::DeviceRadixSort::SortPairs(memory.sort, memory.sort_bytes, memory.key[0],
                                               memory.key[1], memory.value[0], memory.value[1], n,
                                               0, bits, q->stream),
               "scatter_add_rows");
    sorted list = {memory.key[1], memory.value[1], n, none};
    with_compute(dst.dtype, [&](auto d) {
        with_compute(src.dtype, [&](auto s) {
            using D = decltype(d);
            using S = decltype(s);
            if constexpr (sizeof(D) >= sizeof(S)) {
                if (is_wide(&dst) && is_wide(&src))
                    sum_runs<D, S, WIDE>(q, &dst, &src, list, &memory);
                else
                    sum_runs<D, S, 1>(q, &dst, &src, list, &memory);
            }
        });
    });
}
