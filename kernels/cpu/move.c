/* Moving and filling: copies that cast, additions, rows gathered and scattered by index. */
#include "kernels/cpu/cpu.h"

#include <string.h>

/* Elements that are converted at a time. */
#define SPAN 512

static char *row_bytes_at(const struct tensor *t, int64_t row)
{
    return (char *)t->data + row_offset(t, row) * (int64_t)dtype_size(t->dtype);
}

void cpu_transfer(struct kernel_queue *q, void *to, const void *from, size_t bytes)
{
    if (!q->failure && bytes)
        memmove(to, from, bytes);
}

void cpu_fill_zero(struct kernel_queue *q, void *device, size_t bytes)
{
    if (!q->failure && bytes)
        memset(device, 0, bytes);
}

void cpu_copy(struct kernel_queue *q, struct tensor dst, struct tensor src)
{
    assert(same_shape(&dst, &src));
    assert(dst.dtype == src.dtype || (is_float(dst.dtype) && is_float(src.dtype)));
    int64_t rows = row_count(&dst), m = row_length(&dst);
    if (q->failure || rows == 0 || m == 0)
        return;
    size_t dst_size = dtype_size(dst.dtype), src_size = dtype_size(src.dtype);
    for (int64_t i = 0; i < rows; i++) {
        char *to = row_bytes_at(&dst, i);
        const char *from = row_bytes_at(&src, i);
        if (dst.dtype == src.dtype) {
            memmove(to, from, (size_t)m * dst_size);
            continue;
        }
        for (int64_t j = 0; j < m; j += SPAN) {
            float values[SPAN];
            int64_t n = m - j < SPAN ? m - j : SPAN;
            cpu_load(values, from + (size_t)j * src_size, src.dtype, n);
            cpu_store(to + (size_t)j * dst_size, values, dst.dtype, n);
        }
    }
}

VECTORIZED static void add_scaled(float *restrict to, const float *restrict from, float alpha,
                                  int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += alpha * from[i];
}

void cpu_add(struct kernel_queue *q, struct tensor dst, struct tensor src, float alpha)
{
    assert(same_shape(&dst, &src) && is_float(dst.dtype) && is_float(src.dtype));
    int64_t rows = row_count(&dst), m = row_length(&dst);
    if (q->failure || rows == 0 || m == 0)
        return;
    size_t dst_size = dtype_size(dst.dtype), src_size = dtype_size(src.dtype);
    for (int64_t i = 0; i < rows; i++) {
        char *to = row_bytes_at(&dst, i);
        const char *from = row_bytes_at(&src, i);
        for (int64_t j = 0; j < m; j += SPAN) {
            float sum[SPAN], more[SPAN];
            int64_t n = m - j < SPAN ? m - j : SPAN;
            cpu_load(more, from + (size_t)j * src_size, src.dtype, n);
            if (dst.dtype == DTYPE_F32) {
                add_scaled((float *)to + j, more, alpha, n);
                continue;
            }
            cpu_load(sum, to + (size_t)j * dst_size, dst.dtype, n);
            add_scaled(sum, more, alpha, n);
            cpu_store(to + (size_t)j * dst_size, sum, dst.dtype, n);
        }
    }
}

/* A row of the first dimension of a tensor of two or three dimensions. */
static void assert_indexed(const struct tensor *many, const struct tensor *indexed,
                           const struct tensor *rows)
{
    assert(rows->dtype == DTYPE_I32 && rows->dims == 1 && many->dims >= 2);
    assert(many->dims == indexed->dims && many->dtype == indexed->dtype);
    assert(many->shape[1] == indexed->shape[1] && many->shape[0] == rows->shape[0]);
    assert(many->dims == 2 || many->shape[2] == indexed->shape[2]);
    (void)many, (void)indexed, (void)rows;
}

void cpu_gather_rows(struct kernel_queue *q, struct tensor dst, struct tensor src,
                     struct tensor rows)
{
    assert_indexed(&dst, &src, &rows);
    if (q->failure)
        return;
    const int32_t *index = rows.data;
    int64_t parts = dst.dims == 3 ? dst.shape[1] : 1;
    size_t part_bytes = (size_t)row_length(&dst) * dtype_size(dst.dtype);
    for (int64_t i = 0; i < rows.shape[0]; i++) {
        assert(index[i] < src.shape[0]);
        for (int64_t j = 0; j < parts; j++) {
            char *to = row_bytes_at(&dst, i * parts + j);
            if (index[i] < 0)
                memset(to, 0, part_bytes);
            else
                memcpy(to, row_bytes_at(&src, index[i] * parts + j), part_bytes);
        }
    }
}

void cpu_scatter_add_rows(struct kernel_queue *q, struct tensor dst, struct tensor src,
                          struct tensor rows)
{
    assert_indexed(&src, &dst, &rows);
    assert(dst.dtype == DTYPE_F32);
    if (q->failure)
        return;
    const int32_t *index = rows.data;
    int64_t parts = src.dims == 3 ? src.shape[1] : 1;
    for (int64_t i = 0; i < rows.shape[0]; i++) {
        assert(index[i] < dst.shape[0]);
        for (int64_t j = 0; index[i] >= 0 && j < parts; j++)
            add_scaled(row_f32(&dst, index[i] * parts + j), row_f32(&src, i * parts + j), 1.0f,
                       row_length(&src));
    }
}
