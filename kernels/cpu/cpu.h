/* What the files of the CPU backend share.
 *
 * The backend is the readable reference: each operation is the loop that its comment in kernels.h
 * describes, products go to OpenBLAS, and the compiler is asked to vectorize the inner loops
 * (VECTORIZED). Arithmetic is fp32; BF16 and F16 are only copied and added.
 *
 * Tensors of one to three dimensions are walked as rows: the leading dimensions are collapsed into
 * one count of rows, and row_offset gives where a row begins.
 */
#ifndef KERNELS_CPU_H
#define KERNELS_CPU_H

#include <assert.h>

#include "kernels/kernels.h"

/* One function, compiled for several widths of vector registers and chosen when it is loaded; the
 * choice runs before the thread sanitizer's runtime stands, so not under that. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__SANITIZE_THREAD__)
#define VECTORIZED __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define VECTORIZED
#endif

/* Synchronous: what remains of a queue is its first failure and its scratch memory. */
struct kernel_queue {
    struct err *failure;
    void *scratch;
    size_t scratch_bytes;
};

/* At least `bytes` of 256-byte aligned memory, the queue's own, until the next call with this
 * queue. NULL if there is none; the queue has failed then. */
void *cpu_scratch(struct kernel_queue *q, size_t bytes);
/* Keeps e, which it owns, if it is the queue's first failure. */
void cpu_fail(struct kernel_queue *q, struct err *e);

/* n elements of any floating dtype to and from fp32, rounding to nearest even. */
void cpu_load(float *to, const void *from, enum dtype dtype, int64_t n);
void cpu_store(void *to, const float *from, enum dtype dtype, int64_t n);

static inline bool is_float(enum dtype dtype)
{
    return dtype == DTYPE_F32 || dtype == DTYPE_BF16 || dtype == DTYPE_F16;
}

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

/* In elements. */
static inline int64_t row_offset(const struct tensor *t, int64_t row)
{
    if (t->dims == 1)
        return 0;
    if (t->dims == 2)
        return row * t->stride[0];
    return row / t->shape[1] * t->stride[0] + row % t->shape[1] * t->stride[1];
}

static inline float *row_f32(const struct tensor *t, int64_t row)
{
    return (float *)t->data + row_offset(t, row);
}

/* Element `i` of a tensor of one or two dimensions, counted row by row. */
static inline float *element_f32(const struct tensor *t, int64_t i)
{
    if (t->dims == 1)
        return (float *)t->data + i;
    return (float *)t->data + i / t->shape[1] * t->stride[0] + i % t->shape[1];
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

static inline void assert_f32(const struct tensor *t, int dims)
{
    assert(t->dtype == DTYPE_F32 && t->dims == dims && t->stride[dims - 1] == 1);
    (void)t, (void)dims;
}

struct err *cpu_alloc(size_t bytes, void **out);
void cpu_release(void *p);
struct err *cpu_queue_create(struct kernel_queue **out);
void cpu_queue_destroy(struct kernel_queue *q);
struct err *cpu_queue_wait(struct kernel_queue *q);
struct err *cpu_event_create(struct kernel_event **out);
void cpu_event_destroy(struct kernel_event *e);
void cpu_event_record(struct kernel_event *e, struct kernel_queue *q);
void cpu_event_await(struct kernel_event *e, struct kernel_queue *q);
double cpu_event_between_s(const struct kernel_event *begin, const struct kernel_event *end);

void cpu_transfer(struct kernel_queue *q, void *to, const void *from, size_t bytes);
void cpu_copy(struct kernel_queue *q, struct tensor dst, struct tensor src);
void cpu_fill_zero(struct kernel_queue *q, void *device, size_t bytes);
void cpu_add(struct kernel_queue *q, struct tensor dst, struct tensor src, float alpha);
void cpu_gather_rows(struct kernel_queue *q, struct tensor dst, struct tensor src,
                     struct tensor rows);
void cpu_scatter_add_rows(struct kernel_queue *q, struct tensor dst, struct tensor src,
                          struct tensor rows);
void cpu_matmul(struct kernel_queue *q, struct tensor c, struct tensor a, bool transpose_a,
                struct tensor b, bool transpose_b, float alpha, float beta);
void cpu_bias_forward(struct kernel_queue *q, struct tensor x, struct tensor bias);
void cpu_bias_backward(struct kernel_queue *q, struct tensor dbias, struct tensor dx);
void cpu_rmsnorm_forward(struct kernel_queue *q, struct tensor y, struct tensor rstd,
                         struct tensor x, struct tensor w, float eps);
void cpu_rmsnorm_backward(struct kernel_queue *q, struct tensor dx, struct tensor dw,
                          struct tensor dy, struct tensor x, struct tensor w, struct tensor rstd);
void cpu_rope(struct kernel_queue *q, struct tensor x, struct tensor positions,
              struct tensor inv_freq, bool inverse);
void cpu_swiglu_forward(struct kernel_queue *q, struct tensor out, struct tensor gate,
                        struct tensor up);
void cpu_swiglu_backward(struct kernel_queue *q, struct tensor dgate, struct tensor dup,
                         struct tensor dout, struct tensor gate, struct tensor up);
void cpu_attention_forward(struct kernel_queue *q, const struct attention *a);
void cpu_attention_delta(struct kernel_queue *q, const struct attention *a);
void cpu_attention_backward(struct kernel_queue *q, const struct attention *a);
void cpu_cross_entropy(struct kernel_queue *q, struct tensor loss, struct tensor logits,
                       struct tensor labels, struct tensor weights);
void cpu_sum_squares(struct kernel_queue *q, struct tensor out, struct tensor x);
void cpu_adamw(struct kernel_queue *q, struct tensor param, struct tensor m, struct tensor v,
               struct tensor grad, struct tensor copy, const struct adamw *options);

#endif
