/* What the operations reach: those that move bytes, of the rate at which memory is copied in the
 * same run (each byte read once and written once); products of matrices, in floating-point
 * operations. Shapes are those of a model of 1.7 billion parameters over 64K rows. */
#include <inttypes.h>
#include <stdio.h>

#include "daemon/base/clock.h"
#include "tests/cuda/both.h"
#include "tests/cuda/cuda_test.h"

#define ROWS ((int64_t)65536)
#define HIDDEN 2048
#define MIDDLE 6144
#define REPEATS 20

static double copied; /* bytes a second */

static struct tensor device(enum dtype dtype, int64_t n, int64_t m)
{
    struct tensor t = tensor_2d(NULL, dtype, DEVICE_CUDA, n, m);
    must(gpu->alloc((size_t)(n * m) * dtype_size(dtype), &t.data));
    return t;
}

/* Values in (-1, 1) that repeat after a while. */
static struct tensor filled(enum dtype dtype, int64_t n, int64_t m)
{
    static float host[1 << 16];
    const int64_t count = sizeof host / sizeof *host;
    for (int64_t i = 0; i < count; i++)
        host[i] = uniform(-1, 1);
    struct tensor some = device(DTYPE_F32, 1, count), t = device(dtype, n, m);
    gpu->upload(gpu_queue, some.data, host, sizeof host);
    int64_t total = n * m;
    for (int64_t at = 0; at < total; at += count) {
        int64_t now = total - at < count ? total - at : count;
        gpu->copy(
            gpu_queue,
            tensor_1d((char *)t.data + (size_t)at * dtype_size(dtype), dtype, DEVICE_CUDA, now),
            tensor_1d(some.data, DTYPE_F32, DEVICE_CUDA, now));
    }
    must(gpu->queue_wait(gpu_queue));
    gpu->release(some.data);
    return t;
}

static double now(void)
{
    must(gpu->queue_wait(gpu_queue));
    return clock_s();
}

static void told(const char *what, double gigabytes, double seconds)
{
    double rate = gigabytes / seconds * 1e9;
    if (!copied)
        copied = rate;
    printf("%-28s %7.3f GB %8.3f ms %7.0f GB/s  %4.0f%% of copy\n", what, gigabytes, seconds * 1e3,
           rate / 1e9, 100 * rate / copied);
}

/* The mean of repeats behind two that warm up. bytes: that must be moved. */
#define TIME(what, bytes, call)                                                                    \
    do {                                                                                           \
        double began = 0;                                                                          \
        for (int repeat = -2; repeat < REPEATS; repeat++) {                                        \
            if (repeat == 0)                                                                       \
                began = now();                                                                     \
            call;                                                                                  \
        }                                                                                          \
        told(what, (double)(bytes) / 1e9, (now() - began) / REPEATS);                              \
    } while (0)

static struct tensor vector_of(struct tensor t)
{
    return tensor_1d(t.data, t.dtype, t.device, tensor_elements(t));
}

static void memory_bound(void)
{
    enum dtype b = DTYPE_BF16, f = DTYPE_F32;
    int64_t n = ROWS, h = HIDDEN, m = MIDDLE;
    struct tensor x = filled(b, n, h), y = filled(b, n, h), z = filled(b, n, h),
                  s = filled(b, n, h);
    struct tensor gu = filled(b, n, 2 * m), out = filled(b, n, m), dgu = filled(b, n, 2 * m);
    struct tensor qkv = filled(b, n, 2 * h), wide = filled(f, n, h);
    struct tensor w = vector_of(filled(b, 1, h)), dw = vector_of(filled(f, 1, h));
    struct tensor rstd = vector_of(filled(f, n, 1)), rstds = filled(f, n, 16);
    struct tensor head_w = tensor_rows(w, 0, 128), head_dw = tensor_rows(dw, 0, 128);
    struct tensor frequencies = vector_of(filled(f, 1, 64));
    struct both positions = both_i32(n, 0, 65535), ids = both_i32(n, 0, 151935);
    for (int64_t i = 0; i < n; i += 2) /* half of them the mask token */
        ((int32_t *)ids.cpu.data)[i] = 151669;
    both_upload_i32(&ids);
    struct tensor gate = tensor_columns(gu, 0, m), up = tensor_columns(gu, m, m);
    struct tensor dgate = tensor_columns(dgu, 0, m), dup = tensor_columns(dgu, m, m);
    struct tensor q = tensor_heads(tensor_columns(qkv, 0, h), 16), q_out = tensor_heads(y, 16);
    struct tensor k = tensor_heads(tensor_columns(qkv, h, 1024), 8);
    struct tensor k_out = tensor_heads(tensor_columns(z, 0, 1024), 8);
    double row = (double)(n * h) * 2, row_f = (double)(n * h) * 4, middle = (double)(n * m) * 2;

    TIME("copy", 2 * 2 * middle, gpu->copy(gpu_queue, dgu, gu));
    TIME("copy strided heads", row, gpu->copy(gpu_queue, k_out, k));
    TIME("copy f32 to bf16", row + row_f, gpu->copy(gpu_queue, y, wide));
    TIME("add", 3 * row, gpu->add(gpu_queue, y, x, 1e-3f));
    TIME("bias_forward", 2 * row, gpu->bias_forward(gpu_queue, y, w));
    TIME("bias_backward", row, gpu->bias_backward(gpu_queue, dw, y));
    TIME("rmsnorm_forward", 2 * row, gpu->rmsnorm_forward(gpu_queue, y, rstd, x, w, 1e-6f));
    TIME("add_rmsnorm", 4 * row, gpu->fused_add_rmsnorm(gpu_queue, z, y, rstd, x, s, w, 1e-6f));
    TIME("rmsnorm_backward", 4 * row, gpu->rmsnorm_backward(gpu_queue, z, dw, y, x, w, rstd));
    TIME("rmsnorm_backward heads", 4 * row,
         gpu->rmsnorm_backward(gpu_queue, tensor_heads(z, 16), head_dw, q_out, tensor_heads(x, 16),
                               head_w, rstds));
    TIME("rope", 2 * row, gpu->rope(gpu_queue, q_out, positions.gpu, frequencies, false));
    TIME("norm_rope", 2 * row,
         gpu->fused_norm_rope(gpu_queue, q_out, rstds, q, head_w, 1e-6f, positions.gpu,
                              frequencies));
    TIME("swiglu_forward", 3 * middle, gpu->swiglu_forward(gpu_queue, out, gate, up));
    TIME("swiglu_backward", 5 * middle, gpu->swiglu_backward(gpu_queue, dgate, dup, out, gate, up));
    struct tensor embedding = filled(b, 151936, h), gradient = filled(f, 151936, h);
    TIME("gather_rows", 2 * row, gpu->gather_rows(gpu_queue, y, embedding, ids.gpu));
    TIME("scatter_add_rows", row + row_f, /* half of the rows go to one */
         gpu->scatter_add_rows(gpu_queue, gradient, x, ids.gpu));
    struct tensor flat = vector_of(gradient), moment = vector_of(filled(f, 151936, h));
    struct tensor square = vector_of(filled(f, 151936, h)), grad = vector_of(filled(f, 151936, h));
    struct tensor copy = vector_of(embedding);
    gpu->fill_zero(gpu_queue, square.data, (size_t)square.shape[0] * 4);
    struct adamw o = {
        .lr = 1e-5f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .grad_scale = 1, .step = 100};
    double parameters = (double)flat.shape[0];
    TIME("sum_squares", parameters * 4, gpu->sum_squares(gpu_queue, tensor_rows(dw, 0, 1), grad));
    TIME("adamw", parameters * 30, gpu->adamw(gpu_queue, flat, moment, square, grad, copy, &o));
    int64_t chunk = 4096;
    struct tensor logits = filled(b, chunk, 151936), loss = tensor_rows(rstd, 0, chunk);
    struct tensor weights = vector_of(filled(f, chunk, 1));
    TIME("cross_entropy", (double)(chunk * 151936) * 2,
         gpu->cross_entropy(gpu_queue, loss, logits, tensor_rows(ids.gpu, 0, chunk),
                            (struct tensor){0}));
    TIME("cross_entropy, gradient", (double)(chunk * 151936) * 4,
         gpu->cross_entropy(gpu_queue, loss, logits, tensor_rows(ids.gpu, 0, chunk), weights));
}

static void product(const char *what, enum dtype to, enum dtype from, int64_t n, int64_t m,
                    int64_t inner, bool ta, bool tb, float beta)
{
    struct tensor a = filled(from, ta ? inner : n, ta ? n : inner);
    struct tensor b = filled(from, tb ? m : inner, tb ? inner : m), c = filled(to, n, m);
    double began = 0;
    for (int repeat = -2; repeat < REPEATS; repeat++) {
        if (repeat == 0)
            began = now();
        gpu->matmul(gpu_queue, c, a, ta, b, tb, 1, beta);
    }
    double seconds = (now() - began) / REPEATS;
    printf("%-28s %6" PRId64 " x %6" PRId64 " x %6" PRId64 " %8.3f ms %6.0f TFLOP/s\n", what, n, m,
           inner, seconds * 1e3, 2.0 * (double)n * (double)m * (double)inner / seconds / 1e12);
    gpu->release(a.data);
    gpu->release(b.data);
    gpu->release(c.data);
}

void print_speeds(void)
{
    memory_bound();
    enum dtype b = DTYPE_BF16, f = DTYPE_F32;
    product("bf16", b, b, 8192, 8192, 8192, false, true, 0);
    product("bf16, qkv", b, b, ROWS, 4096, HIDDEN, false, true, 0);
    product("bf16, gate and up", b, b, ROWS, 2 * MIDDLE, HIDDEN, false, true, 0);
    product("bf16, down, added", b, b, ROWS, HIDDEN, MIDDLE, false, true, 1);
    product("bf16, d of down", b, b, ROWS, MIDDLE, HIDDEN, false, false, 0);
    product("bf16 to f32, dw of down", f, b, HIDDEN, MIDDLE, ROWS, true, false, 1);
    product("bf16 to f32, dw of gate, up", f, b, 2 * MIDDLE, HIDDEN, ROWS, true, false, 1);
    product("bf16, logits", b, b, 4096, 151936, HIDDEN, false, true, 0);
    product("bf16, d of logits", b, b, 4096, HIDDEN, 151936, false, false, 0);
    product("bf16 to f32, dw of logits", f, b, 151936, HIDDEN, 4096, true, false, 1);
    product("f32", f, f, 8192, 8192, 8192, false, true, 0);
}
