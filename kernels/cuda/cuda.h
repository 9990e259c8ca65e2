/* What the files of the CUDA backend share.
 *
 * A queue is a stream, its first failure, and memory of its own: scratch for operations that need
 * it and the plans and workspace of matrix products. An operation checks its arguments (a fault of
 * the caller is an assertion), does nothing in a failed queue, launches, and keeps what the launch
 * answered. What goes wrong on the device shows when the queue is awaited.
 *
 * Activations and weights are F32 or BF16, all of an operation in one of them unless its comment
 * says otherwise; arithmetic is fp32. Gradients of weights (dw, dbias) are F32.
 */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include <assert.h>
#include <cuda_runtime.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

struct matmul_plans;

/* Where a kernel leaves that an index was out of range: (operation << 32) | index, 0 for none. In
 * host memory that the device writes to, so that no copy is needed to look. */
typedef volatile unsigned long long index_fault;
enum index_operation { INDEX_GATHER = 1, INDEX_SCATTER, INDEX_LABEL };

struct kernel_queue {
    cudaStream_t stream;
    struct err *failure;
    void *scratch;
    size_t scratch_bytes;
    index_fault *fault;
    struct matmul_plans *plans; /* NULL until the first product */
};

/* At least `bytes` of 256-byte aligned device memory, the queue's own, for the operation that asks.
 * NULL if there is none; the queue has failed then. */
void *cuda_scratch(struct kernel_queue *q, size_t bytes);
/* Keeps e, which it owns, if it is the queue's first failure. */
void cuda_fail(struct kernel_queue *q, struct err *e);
/* Keeps what a call of CUDA answered, if it is not success. what: the operation's name. */
void cuda_check(struct kernel_queue *q, cudaError_t answer, const char *what);
struct err *cuda_error(cudaError_t answer, const char *what);

/* Multiprocessors of the device. */
int cuda_multiprocessors(void);

/* Opens the library of matrix products, once a process. */
struct err *cuda_matmul_open(void);
void cuda_matmul_plans_free(struct matmul_plans *plans);

struct err *cuda_alloc(size_t bytes, void **out);
void cuda_release(void *p);
struct err *cuda_host_alloc(size_t bytes, void **out);
void cuda_host_release(void *p);
struct err *cuda_queue_create(struct kernel_queue **out);
void cuda_queue_destroy(struct kernel_queue *q);
struct err *cuda_queue_wait(struct kernel_queue *q);
struct err *cuda_event_create(struct kernel_event **out);
void cuda_event_destroy(struct kernel_event *e);
void cuda_event_record(struct kernel_event *e, struct kernel_queue *q);
void cuda_event_await(struct kernel_event *e, struct kernel_queue *q);
double cuda_event_between_s(const struct kernel_event *begin, const struct kernel_event *end);

void cuda_upload(struct kernel_queue *q, void *device, const void *host, size_t bytes);
void cuda_download(struct kernel_queue *q, void *host, const void *device, size_t bytes);
void cuda_fill_zero(struct kernel_queue *q, void *device, size_t bytes);
void cuda_copy(struct kernel_queue *q, struct tensor dst, struct tensor src);
void cuda_add(struct kernel_queue *q, struct tensor dst, struct tensor src, float alpha);
void cuda_gather_rows(struct kernel_queue *q, struct tensor dst, struct tensor src,
                      struct tensor rows);
/* dst may be F32 where src is BF16. */
void cuda_scatter_add_rows(struct kernel_queue *q, struct tensor dst, struct tensor src,
                           struct tensor rows);
/* c may be F32 where a and b are BF16. */
void cuda_matmul(struct kernel_queue *q, struct tensor c, struct tensor a, bool transpose_a,
                 struct tensor b, bool transpose_b, float alpha, float beta);
void cuda_bias_forward(struct kernel_queue *q, struct tensor x, struct tensor bias);
void cuda_bias_backward(struct kernel_queue *q, struct tensor dbias, struct tensor dx);
void cuda_rmsnorm_forward(struct kernel_queue *q, struct tensor y, struct tensor rstd,
                          struct tensor x, struct tensor w, float eps);
void cuda_add_rmsnorm(struct kernel_queue *q, struct tensor sum, struct tensor y,
                      struct tensor rstd, struct tensor a, struct tensor b, struct tensor w,
                      float eps);
/* dy may be F32 where the others are BF16. */
void cuda_rmsnorm_backward(struct kernel_queue *q, struct tensor dx, struct tensor dw,
                           struct tensor dy, struct tensor x, struct tensor w, struct tensor rstd);
void cuda_rope(struct kernel_queue *q, struct tensor x, struct tensor positions,
               struct tensor inv_freq, bool inverse);
void cuda_norm_rope(struct kernel_queue *q, struct tensor y, struct tensor rstd, struct tensor x,
                    struct tensor w, float eps, struct tensor positions, struct tensor inv_freq);
void cuda_swiglu_forward(struct kernel_queue *q, struct tensor out, struct tensor gate,
                         struct tensor up);
void cuda_swiglu_backward(struct kernel_queue *q, struct tensor dgate, struct tensor dup,
                          struct tensor dout, struct tensor gate, struct tensor up);
void cuda_cross_entropy(struct kernel_queue *q, struct tensor loss, struct tensor logits,
                        struct tensor labels, struct tensor weights);
void cuda_sum_squares(struct kernel_queue *q, struct tensor out, struct tensor x);
/* param, m and v are F32; grad F32 or BF16; copy BF16. */
void cuda_adamw(struct kernel_queue *q, struct tensor param, struct tensor m, struct tensor v,
                struct tensor grad, struct tensor copy, const struct adamw *options);

/* x *= factor: what a product over nothing leaves. factor 0 writes zeros, whatever was there. */
void cuda_scale(struct kernel_queue *q, struct tensor x, float factor);

#ifdef __cplusplus
}
#endif

#endif
