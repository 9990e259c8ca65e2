/* Tensors of more than 2^31 elements. A few random rows are repeated until they fill such a tensor,
 * so that every row of a result is known from the same operation on the few rows alone; rows on
 * both sides of 2^31 elements, of 2^32 bytes and at the end are compared to the bit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/both.h"
#include "tests/cuda/cuda_test.h"

#define FEW 64 /* rows that repeat */
#define LIMIT ((int64_t)1 << 31)

struct big {
    struct tensor few, all; /* on the device */
};

static struct tensor like(struct tensor t, int64_t rows)
{
    t.shape[0] = rows;
    must(gpu->alloc((size_t)tensor_elements(t) * dtype_size(t.dtype), &t.data));
    return t;
}

/* few's rows, over and over. */
static void repeat(struct tensor all, struct tensor few)
{
    int64_t done = few.shape[0];
    gpu->copy(gpu_queue, tensor_rows(all, 0, done), few);
    while (done < all.shape[0]) {
        int64_t n = all.shape[0] - done < done ? all.shape[0] - done : done;
        gpu->copy(gpu_queue, tensor_rows(all, done, n), tensor_rows(all, 0, n));
        done += n;
    }
}

static struct tensor few_rows(enum dtype dtype, int64_t m, int64_t k, float low, float high)
{
    struct tensor t = k > 0 ? tensor_3d(NULL, DTYPE_F32, DEVICE_CUDA, FEW, m, k)
                            : tensor_2d(NULL, DTYPE_F32, DEVICE_CUDA, FEW, m);
    int64_t n = tensor_elements(t);
    float *host = malloc((size_t)n * sizeof *host);
    if (!host)
        must(err_no_memory());
    for (int64_t i = 0; i < n; i++)
        host[i] = uniform(low, high);
    t = like(t, FEW);
    gpu->upload(gpu_queue, t.data, host, (size_t)n * sizeof *host);
    struct tensor out = t;
    out.dtype = dtype;
    out = like(out, FEW);
    gpu->copy(gpu_queue, out, t);
    must(gpu->queue_wait(gpu_queue));
    gpu->release(t.data);
    free(host);
    return out;
}

static struct big big(enum dtype dtype, int64_t rows, int64_t m, int64_t k)
{
    struct big b = {.few = few_rows(dtype, m, k, -1, 1)};
    b.all = like(b.few, rows);
    repeat(b.all, b.few);
    return b;
}

static void drop(struct big b)
{
    must(gpu->queue_wait(gpu_queue));
    gpu->release(b.few.data);
    gpu->release(b.all.data);
}

static void *download(struct tensor t, size_t *bytes)
{
    *bytes = (size_t)tensor_elements(t) * dtype_size(t.dtype);
    void *host = malloc(*bytes);
    if (!host)
        must(err_no_memory());
    gpu->download(gpu_queue, host, t.data, *bytes);
    must(gpu->queue_wait(gpu_queue));
    return host;
}

/* all's rows are few's, over and over. */
static void check(const char *what, struct big b)
{
    int64_t rows = b.all.shape[0], per_row = tensor_elements(b.few) / FEW, wrong = 0;
    int64_t middle = LIMIT / per_row / FEW * FEW, last = (rows - FEW) / FEW * FEW;
    const int64_t places[] = {0, middle / 2 / FEW * FEW, middle - FEW, middle, middle + FEW, last};
    size_t bytes;
    void *few = download(b.few, &bytes);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        void *some = download(tensor_rows(b.all, places[i], FEW), &bytes);
        wrong += memcmp(some, few, bytes) != 0;
        free(some);
    }
    free(few);
    printf("%-22s %-5s %.2f x 2^31 elements   %s\n", what, dtype_name(b.all.dtype),
           (double)tensor_elements(b.all) / (double)LIMIT, wrong ? "WRONG" : "right");
    expect(!wrong, what);
}

static struct tensor indices(int64_t n, int64_t period, int64_t begin)
{
    int32_t *host = malloc((size_t)n * sizeof *host);
    if (!host)
        must(err_no_memory());
    for (int64_t i = 0; i < n; i++)
        host[i] = (int32_t)(begin + i % period);
    struct tensor t = tensor_1d(NULL, DTYPE_I32, DEVICE_CUDA, n);
    must(gpu->alloc((size_t)n * sizeof *host, &t.data));
    gpu->upload(gpu_queue, t.data, host, (size_t)n * sizeof *host);
    must(gpu->queue_wait(gpu_queue));
    free(host);
    return t;
}

static void rows_by_rows(int64_t rows, int64_t m)
{
    struct big a = big(DTYPE_BF16, rows, m, 0), b = big(DTYPE_BF16, rows, m, 0);
    struct big c = big(DTYPE_BF16, rows, m, 0);
    check("copy", a);
    gpu->swiglu_forward(gpu_queue, c.few, a.few, b.few);
    gpu->swiglu_forward(gpu_queue, c.all, a.all, b.all);
    check("swiglu_forward", c);
    gpu->add(gpu_queue, c.few, a.few, 0.5f);
    gpu->add(gpu_queue, c.all, a.all, 0.5f);
    check("add", c);
    struct tensor w = few_rows(DTYPE_BF16, m, 0, 0, 2), bias = w;
    bias.dims = w.dims = 1;
    bias.shape[0] = w.shape[0] = m;
    bias.stride[0] = w.stride[0] = 1;
    gpu->bias_forward(gpu_queue, c.few, bias);
    gpu->bias_forward(gpu_queue, c.all, bias);
    check("bias_forward", c);
    struct tensor rstd = tensor_1d(NULL, DTYPE_F32, DEVICE_CUDA, rows);
    rstd = like(rstd, rows);
    kernel_add_rmsnorm(gpu, gpu_queue, a.few, c.few, tensor_rows(rstd, 0, FEW), a.few, b.few, w,
                       1e-6f);
    kernel_add_rmsnorm(gpu, gpu_queue, a.all, c.all, rstd, a.all, b.all, w, 1e-6f);
    check("add_rmsnorm sum", a);
    check("add_rmsnorm", c);
    struct tensor dw = like(tensor_1d(NULL, DTYPE_F32, DEVICE_CUDA, m), m);
    gpu->fill_zero(gpu_queue, dw.data, (size_t)m * sizeof(float));
    gpu->rmsnorm_backward(gpu_queue, a.few, dw, b.few, c.few, w, tensor_rows(rstd, 0, FEW));
    gpu->rmsnorm_backward(gpu_queue, a.all, dw, b.all, c.all, w, rstd);
    check("rmsnorm_backward", a);
    struct tensor rows_of_few = indices(rows, FEW, rows / FEW * FEW - FEW);
    gpu->gather_rows(gpu_queue, c.few, b.all, tensor_rows(rows_of_few, 0, FEW));
    gpu->gather_rows(gpu_queue, c.all, b.all, rows_of_few);
    check("gather_rows", c);
    must(gpu->queue_wait(gpu_queue));
    gpu->release(rows_of_few.data);
    gpu->release(dw.data);
    gpu->release(rstd.data);
    gpu->release(w.data);
    drop(a);
    drop(b);
    drop(c);
}

static void heads(int64_t rows)
{
    struct big x = big(DTYPE_BF16, rows, 16, 128), y = big(DTYPE_BF16, rows, 16, 128);
    struct tensor positions = indices(rows, FEW, 1000);
    struct tensor w = few_rows(DTYPE_BF16, 128, 0, 0, 2),
                  frequencies = few_rows(DTYPE_F32, 64, 0, 0, 1);
    struct tensor rstd = like(tensor_2d(NULL, DTYPE_F32, DEVICE_CUDA, rows, 16), rows);
    w.dims = frequencies.dims = 1;
    w.shape[0] = 128, frequencies.shape[0] = 64;
    w.stride[0] = frequencies.stride[0] = 1;
    kernel_norm_rope(gpu, gpu_queue, y.few, tensor_rows(rstd, 0, FEW), x.few, w, 1e-6f,
                     tensor_rows(positions, 0, FEW), frequencies);
    kernel_norm_rope(gpu, gpu_queue, y.all, rstd, x.all, w, 1e-6f, positions, frequencies);
    check("norm_rope", y);
    gpu->rope(gpu_queue, x.few, tensor_rows(positions, 0, FEW), frequencies, true);
    gpu->rope(gpu_queue, x.all, positions, frequencies, true);
    check("rope", x);
    must(gpu->queue_wait(gpu_queue));
    gpu->release(positions.data);
    gpu->release(w.data);
    gpu->release(frequencies.data);
    gpu->release(rstd.data);
    drop(x);
    drop(y);
}

static void vocabulary(int64_t rows, int64_t v)
{
    struct big logits = big(DTYPE_BF16, rows, v, 0);
    struct tensor labels = indices(rows, FEW, v - FEW);
    struct big loss = {.few = like(tensor_1d(NULL, DTYPE_F32, DEVICE_CUDA, FEW), FEW)};
    struct tensor weights = like(tensor_1d(NULL, DTYPE_F32, DEVICE_CUDA, rows), rows);
    loss.all = like(loss.few, rows);
    float *ones = malloc((size_t)rows * sizeof *ones);
    if (!ones)
        must(err_no_memory());
    for (int64_t i = 0; i < rows; i++)
        ones[i] = 1;
    gpu->upload(gpu_queue, weights.data, ones, (size_t)rows * sizeof *ones);
    gpu->cross_entropy(gpu_queue, loss.few, logits.few, tensor_rows(labels, 0, FEW),
                       tensor_rows(weights, 0, FEW));
    gpu->cross_entropy(gpu_queue, loss.all, logits.all, labels, weights);
    check("cross_entropy", logits);
    free(ones);
    /* The rows of logits come from a product, and their gradient goes into one. */
    struct big h = big(DTYPE_BF16, rows, 64, 0);
    struct tensor w = like(tensor_2d(NULL, DTYPE_BF16, DEVICE_CUDA, v, 64), v);
    repeat(w, h.few);
    gpu->matmul(gpu_queue, logits.few, h.few, false, w, true, 1, 0);
    gpu->matmul(gpu_queue, logits.all, h.all, false, w, true, 1, 0);
    check("matmul", logits);
    must(gpu->queue_wait(gpu_queue));
    gpu->release(w.data);
    gpu->release(labels.data);
    gpu->release(weights.data);
    drop(h);
    drop(loss);
    drop(logits);
}

/* Four flat buffers, seen as rows of few's so that they repeat. */
static void optimizer(int64_t rows, int64_t m)
{
    struct big all[4];
    struct tensor flat[2][4];
    for (int i = 0; i < 4; i++) {
        all[i] = big(DTYPE_F32, rows, m, 0);
        flat[0][i] = tensor_1d(all[i].few.data, DTYPE_F32, DEVICE_CUDA, FEW * m);
        flat[1][i] = tensor_1d(all[i].all.data, DTYPE_F32, DEVICE_CUDA, rows * m);
    }
    float squares[2];
    struct tensor out = like(tensor_1d(NULL, DTYPE_F32, DEVICE_CUDA, 1), 1);
    for (int i = 0; i < 2; i++) {
        gpu->fill_zero(gpu_queue, out.data, sizeof(float));
        gpu->sum_squares(gpu_queue, out, flat[i][3]);
        gpu->download(gpu_queue, &squares[i], out.data, sizeof(float));
        must(gpu->queue_wait(gpu_queue));
    }
    double ratio = (double)squares[1] / squares[0] / ((double)rows / FEW);
    printf("%-22s f32   %.2f x 2^31 elements   %s\n", "sum_squares",
           (double)(rows * m) / (double)LIMIT, fabs(ratio - 1) < 1e-6 ? "right" : "WRONG");
    expect(fabs(ratio - 1) < 1e-6, "sum_squares");
    struct adamw o = {.lr = 1e-2f,
                      .beta1 = 0.9f,
                      .beta2 = 0.95f,
                      .eps = 1e-8f,
                      .grad_scale = 1,
                      .weight_decay = 0.1f,
                      .step = 2};
    for (int i = 0; i < 2; i++) { /* squares are positive */
        gpu->fill_zero(gpu_queue, flat[i][2].data, (size_t)flat[i][2].shape[0] * sizeof(float));
        gpu->adamw(gpu_queue, flat[i][0], flat[i][1], flat[i][2], flat[i][3], (struct tensor){0},
                   &o);
    }
    check("adamw", all[0]);
    /* Rows beyond 2^31 elements of the destination. */
    struct tensor index = indices(FEW, FEW, rows - FEW);
    struct tensor end = tensor_rows(all[1].all, rows - FEW, FEW);
    gpu->copy(gpu_queue, all[2].few, end);
    gpu->add(gpu_queue, all[2].few, all[3].few, 1);
    gpu->scatter_add_rows(gpu_queue, all[1].all, all[3].few, index);
    size_t bytes;
    void *expected = download(all[2].few, &bytes), *found = download(end, &bytes);
    bool right = !memcmp(expected, found, bytes);
    printf("%-22s f32   %.2f x 2^31 elements   %s\n", "scatter_add_rows",
           (double)(rows * m) / (double)LIMIT, right ? "right" : "WRONG");
    expect(right, "scatter_add_rows");
    free(expected);
    free(found);
    gpu->release(index.data);
    gpu->release(out.data);
    for (int i = 0; i < 4; i++)
        drop(all[i]);
}

void test_large(void)
{
    rows_by_rows((1 << 20) + 128, 2304);
    rows_by_rows((1 << 20) + 128, 2049); /* not aligned */
    heads((1 << 20) + 128 * FEW);
    vocabulary(15 * 1024, 151936);
    optimizer((1 << 20) + 128, 2304);
}
