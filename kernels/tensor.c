#include "kernels/kernels.h"

#include <assert.h>

size_t dtype_size(enum dtype dtype)
{
    static const size_t sizes[] = {
        [DTYPE_F32] = 4, [DTYPE_BF16] = 2, [DTYPE_F16] = 2, [DTYPE_I32] = 4, [DTYPE_U8] = 1,
    };
    return sizes[dtype];
}

const char *dtype_name(enum dtype dtype)
{
    static const char *const names[] = {
        [DTYPE_F32] = "f32", [DTYPE_BF16] = "bf16", [DTYPE_F16] = "f16",
        [DTYPE_I32] = "i32", [DTYPE_U8] = "u8",
    };
    return names[dtype];
}

struct tensor tensor_1d(void *data, enum dtype dtype, enum device device, int64_t n)
{
    return (struct tensor){
        .data = data, .dtype = dtype, .device = device, .dims = 1, .shape = {n}, .stride = {1}};
}

struct tensor tensor_2d(void *data, enum dtype dtype, enum device device, int64_t n, int64_t m)
{
    return (struct tensor){.data = data,
                           .dtype = dtype,
                           .device = device,
                           .dims = 2,
                           .shape = {n, m},
                           .stride = {m, 1}};
}

struct tensor tensor_3d(void *data, enum dtype dtype, enum device device, int64_t n, int64_t m,
                        int64_t k)
{
    return (struct tensor){.data = data,
                           .dtype = dtype,
                           .device = device,
                           .dims = 3,
                           .shape = {n, m, k},
                           .stride = {m * k, k, 1}};
}

struct tensor tensor_rows(struct tensor t, int64_t begin, int64_t count)
{
    assert(begin >= 0 && count >= 0 && begin + count <= t.shape[0]);
    /* No row, no move: a pointer to nothing (NULL too) stays what it is. */
    if (count)
        t.data = (char *)t.data + (size_t)(begin * t.stride[0]) * dtype_size(t.dtype);
    t.shape[0] = count;
    return t;
}

struct tensor tensor_columns(struct tensor t, int64_t begin, int64_t count)
{
    assert(t.dims == 2 && begin >= 0 && count >= 0 && begin + count <= t.shape[1]);
    t.data = (char *)t.data + (size_t)begin * dtype_size(t.dtype);
    t.shape[1] = count;
    return t;
}

struct tensor tensor_heads(struct tensor t, int64_t heads)
{
    assert(t.dims == 2 && heads > 0 && t.shape[1] % heads == 0);
    int64_t d = t.shape[1] / heads;
    t.dims = 3;
    t.shape[1] = heads;
    t.shape[2] = d;
    t.stride[1] = d;
    t.stride[2] = 1;
    return t;
}

struct tensor tensor_flat(struct tensor t)
{
    assert(t.dims == 3 && (t.stride[1] == t.shape[2] || t.shape[1] <= 1));
    t.dims = 2;
    t.shape[1] *= t.shape[2];
    t.shape[2] = 0;
    t.stride[1] = 1;
    t.stride[2] = 0;
    return t;
}

int64_t tensor_elements(struct tensor t)
{
    int64_t n = 1;
    for (int i = 0; i < t.dims; i++)
        n *= t.shape[i];
    return n;
}
