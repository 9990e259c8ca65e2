/* Moving and filling: copies that cast, additions, rows gathered by index. */
#include "kernels/cuda/device.cuh"

/* dst = src, from any floating dtype to any, or as it is. */
template <class D, class S> struct copy_op {
    rows_of<D> dst;
    rows_of<const S> src;

    template <int V> using in = vec<S, V>;
    template <int V> __device__ in<V> load(int64_t row, int64_t column) const
    {
        return ::load<S, V>(src.at(row) + column);
    }
    template <int V> __device__ void store(int64_t row, int64_t column, const in<V> &x) const
    {
        vec<D, V> y;
#pragma unroll
        for (int j = 0; j < V; j++)
            y.x[j] = rounded<D>(f32(x.x[j]));
        ::store(dst.at(row) + column, y);
    }
};

template <class T> struct move_op {
    rows_of<T> dst;
    rows_of<const T> src;

    template <int V> using in = vec<T, V>;
    template <int V> __device__ in<V> load(int64_t row, int64_t column) const
    {
        return ::load<T, V>(src.at(row) + column);
    }
    template <int V> __device__ void store(int64_t row, int64_t column, const in<V> &x) const
    {
        ::store(dst.at(row) + column, x);
    }
};

template <class D, class S> struct add_op {
    rows_of<D> dst;
    rows_of<const S> src;
    float alpha;

    template <int V> struct in {
        vec<D, V> to;
        vec<S, V> from;
    };
    template <int V> __device__ in<V> load(int64_t row, int64_t column) const
    {
        return {::load<D, V>(dst.at(row) + column), ::load<S, V>(src.at(row) + column)};
    }
    template <int V> __device__ void store(int64_t row, int64_t column, in<V> &x) const
    {
#pragma unroll
        for (int j = 0; j < V; j++)
            x.to.x[j] = rounded<D>(f32(x.to.x[j]) + alpha * f32(x.from.x[j]));
        ::store(dst.at(row) + column, x.to);
    }
};

/* dst[i] = src[index[i]] in `parts` parts (heads, say) a row. */
template <class T> struct gather_op {
    rows_of<T> dst;
    rows_of<const T> src;
    const int32_t *index;
    int64_t parts, src_rows;
    index_fault *fault;

    template <int V> using in = vec<T, V>;
    template <int V> __device__ in<V> load(int64_t row, int64_t column) const
    {
        int64_t i = parts == 1 ? row : row / parts, from = index[i];
        in<V> none = {};
        if (from >= src_rows)
            *fault = (unsigned long long)INDEX_GATHER << 32 | (uint32_t)from;
        if (from < 0 || from >= src_rows)
            return none;
        return ::load<T, V>(src.at(from * parts + (row - i * parts)) + column);
    }
    template <int V> __device__ void store(int64_t row, int64_t column, const in<V> &x) const
    {
        ::store(dst.at(row) + column, x);
    }
};

template <class T> struct scale_op {
    rows_of<T> x;
    float factor;

    template <int V> using in = vec<T, V>;
    template <int V> __device__ in<V> load(int64_t row, int64_t column) const
    {
        return ::load<T, V>(x.at(row) + column);
    }
    template <int V> __device__ void store(int64_t row, int64_t column, in<V> &y) const
    {
#pragma unroll
        for (int j = 0; j < V; j++)
            y.x[j] = rounded<T>(factor == 0 ? 0.0f : factor * f32(y.x[j]));
        ::store(x.at(row) + column, y);
    }
};

template <class T>
static void move(struct kernel_queue *q, const struct tensor *dst, const struct tensor *src)
{
    move_op<T> op = {rows_in<T>(dst), rows_in<const T>(src)};
    each(q, op, row_count(dst), row_length(dst), is_wide(dst) && is_wide(src), "copy");
}

void cuda_copy(struct kernel_queue *q, struct tensor dst, struct tensor src)
{
    assert(dst.device == DEVICE_CUDA && src.device == DEVICE_CUDA);
    assert(same_shape(&dst, &src));
    assert(dst.dtype == src.dtype || (is_float(dst.dtype) && is_float(src.dtype)));
    struct tensor *both[] = {&dst, &src};
    flatten(both);
    if (dst.dtype == src.dtype) {
        size_t size = dtype_size(dst.dtype);
        if (dst.dims == 1 && !q->failure)
            cuda_check(q,
                       cudaMemcpyAsync(dst.data, src.data, (size_t)dst.shape[0] * size,
                                       cudaMemcpyDeviceToDevice, q->stream),
                       "copy");
        else if (size == 4)
            move<uint32_t>(q, &dst, &src);
        else if (size == 2)
            move<uint16_t>(q, &dst, &src);
        else
            move<uint8_t>(q, &dst, &src);
        return;
    }
    with_float(dst.dtype, [&](auto d) {
        with_float(src.dtype, [&](auto s) {
            using D = decltype(d);
            using S = decltype(s);
            copy_op<D, S> op = {rows_in<D>(&dst), rows_in<const S>(&src)};
            each(q, op, row_count(&dst), row_length(&dst), is_wide(&dst) && is_wide(&src), "copy");
        });
    });
}

void cuda_add(struct kernel_queue *q, struct tensor dst, struct tensor src, float alpha)
{
    assert(dst.device == DEVICE_CUDA && src.device == DEVICE_CUDA);
    assert(same_shape(&dst, &src) && is_float(dst.dtype) && is_float(src.dtype));
    struct tensor *both[] = {&dst, &src};
    flatten(both);
    with_float(dst.dtype, [&](auto d) {
        with_float(src.dtype, [&](auto s) {
            using D = decltype(d);
            using S = decltype(s);
            add_op<D, S> op = {rows_in<D>(&dst), rows_in<const S>(&src), alpha};
            each(q, op, row_count(&dst), row_length(&dst), is_wide(&dst) && is_wide(&src), "add");
        });
    });
}

void cuda_scale(struct kernel_queue *q, struct tensor x, float factor)
{
    struct tensor *one[] = {&x};
    flatten(one);
    with_compute(x.dtype, [&](auto t) {
        using T = decltype(t);
        scale_op<T> op = {rows_in<T>(&x), factor};
        each(q, op, row_count(&x), row_length(&x), is_wide(&x), "scaling");
    });
}

template <class T>
static void gather(struct kernel_queue *q, const struct tensor *dst, const struct tensor *src,
                   const struct tensor *rows)
{
    gather_op<T> op = {rows_in<T>(dst),
                       rows_in<const T>(src),
                       (const int32_t *)rows->data,
                       dst->dims == 3 ? dst->shape[1] : 1,
                       src->shape[0],
                       q->fault};
    each(q, op, row_count(dst), row_length(dst), is_wide(dst) && is_wide(src), "gather_rows");
}

/* Trailing dimensions without gaps are one, so that a row is moved whole. */
static void join_heads(struct tensor *a, struct tensor *b)
{
    if (a->dims == 3 && a->stride[1] == a->shape[2] && b->stride[1] == b->shape[2]) {
        *a = tensor_flat(*a);
        *b = tensor_flat(*b);
    }
}

void cuda_gather_rows(struct kernel_queue *q, struct tensor dst, struct tensor src,
                      struct tensor rows)
{
    assert_dtype(&rows, 1, DTYPE_I32);
    assert(dst.device == DEVICE_CUDA && src.device == DEVICE_CUDA);
    assert(dst.dims >= 2 && dst.dims == src.dims && dst.dtype == src.dtype);
    assert(dst.shape[0] == rows.shape[0] && dst.shape[1] == src.shape[1]);
    assert(dst.dims == 2 || dst.shape[2] == src.shape[2]);
    join_heads(&dst, &src);
    switch (dtype_size(dst.dtype)) {
    case 4:
        gather<uint32_t>(q, &dst, &src, &rows);
        break;
    case 2:
        gather<uint16_t>(q, &dst, &src, &rows);
        break;
    default:
        gather<uint8_t>(q, &dst, &src, &rows);
    }
}
