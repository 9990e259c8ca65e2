/* Operations on tensors: the one header that the rest of the program sees of kernels/.
 *
 * A backend is a table of functions (struct kernels). kernels/cpu fills it in C over OpenBLAS and
 * is the readable reference; the CUDA plugin fills the same table. Callers never ask which one
 * they hold. This folder knows tensors and queues; it knows nothing of jobs, layers or ranks.
 *
 * Queues. Every operation takes a queue and returns at once; work in one queue happens in order.
 * A queue that failed stays failed: operations after the failure do nothing, and every queue_wait
 * returns it, to be freed by the caller. Queues are joined by events (event_record in one,
 * event_await in the other), which carry a failure along. A queue serves one thread at a time. The
 * CPU backend's queues are synchronous: an operation has happened when its call returns.
 *
 * Tensors are views: the caller owns the memory, which must outlive the queued work. Shapes in the
 * comments are rows first; n, m are counts of rows, H heads, d the head dimension. The last
 * dimension always has stride 1; other strides are in elements and may exceed the extent, so that
 * K and V can share rows. Every offset is 64-bit. A shape that an operation does not accept is a
 * fault of the caller: an assertion.
 *
 * Arithmetic is in the tensors' dtype, F32 or BF16, with fp32 accumulation (the CPU backend
 * computes in fp32 alone); statistics (rstd, log-sum-exp), losses and norms are fp32 whatever the
 * dtype. The tensors of a call are of one dtype; where they are BF16, what sums over rows may be
 * F32 (c of a product, dst of scatter_add_rows), the gradients that attention adds to and dy of a
 * norm's backward may be too, and dw of a norm and dbias are. "+=" in a comment means that the
 * operation adds to what is there; everything else is overwritten.
 */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/base/intervals.h"

/* Raised whenever a struct or the meaning of a function below changes. A plugin of another number
 * is to be refused by name. */
#define KERNELS_ABI 3

enum dtype { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_I32, DTYPE_U8 };
size_t dtype_size(enum dtype dtype);
const char *dtype_name(enum dtype dtype);

enum device { DEVICE_CPU, DEVICE_CUDA };

#define TENSOR_DIMS 3

struct tensor {
    void *data;
    enum dtype dtype;
    enum device device;
    int dims; /* 1..TENSOR_DIMS */
    int64_t shape[TENSOR_DIMS];
    int64_t stride[TENSOR_DIMS]; /* elements; stride[dims - 1] == 1 */
};

/* Contiguous views of `data`. */
struct tensor tensor_1d(void *data, enum dtype dtype, enum device device, int64_t n);
struct tensor tensor_2d(void *data, enum dtype dtype, enum device device, int64_t n, int64_t m);
struct tensor tensor_3d(void *data, enum dtype dtype, enum device device, int64_t n, int64_t m,
                        int64_t k);
/* Rows [begin, begin + count) of the first dimension. */
struct tensor tensor_rows(struct tensor t, int64_t begin, int64_t count);
/* Columns [begin, begin + count) of a tensor of dims 2. */
struct tensor tensor_columns(struct tensor t, int64_t begin, int64_t count);
/* The same rows seen with another split of the trailing dimensions, e.g. [n, H d] as [n, H, d] and
 * back. Trailing dimensions must be contiguous. */
struct tensor tensor_heads(struct tensor t, int64_t heads);
struct tensor tensor_flat(struct tensor t);
int64_t tensor_elements(struct tensor t);

struct kernel_queue;
struct kernel_event;

/* Interval attention (docs/mathematics.md, "Attention"): every query row sees at most one
 * interval of key positions in each of at most ATTENTION_PIECES pieces. */
struct attention_piece {
    struct tensor k, v;   /* [m, H_kv, d] */
    struct tensor dk, dv; /* backward only, as k and v, += */
    /* Sorted by position, disjoint. A position that a query sees and no chunk holds is a fault of
     * the caller; a key that no query sees is not read. Host memory, as is intervals; both must
     * outlive the queued work. */
    const struct key_chunk *chunks;
    int n_chunks;
    const struct key_interval *intervals; /* [n], one a query row */
};

struct attention {
    struct tensor q;   /* [n, H, d], H a multiple of H_kv */
    struct tensor o;   /* [n, H, d] */
    struct tensor lse; /* [n, H] fp32: log-sum-exp of scaled scores; -inf where nothing is seen */
    /* forward: false overwrites o and lse; true merges with what earlier calls left there, as if
     * all keys had been seen at once (o and lse are those of the union). */
    bool merge;
    /* backward: o and lse are final (of all pieces, whichever call computed them). */
    struct tensor d_o; /* [n, H, d] */
    struct tensor dq;  /* [n, H, d], += */
    float scale;       /* of the scores: 1 / sqrt(d), times what a rotation adds */
    /* Backward scratch [n, H] fp32: rowsum(d_o * o), written by attention_delta. */
    struct tensor delta;
    int n_pieces;
    struct attention_piece pieces[ATTENTION_PIECES];
    /* Not 0: calls of the same number have the same shapes, and equal chunks and intervals in the
     * same pieces, so a backend may keep in the queue what it made of them. */
    uint64_t pattern;
};

struct adamw {
    float lr, beta1, beta2, eps, weight_decay; /* weight_decay 0 for tensors of one dimension */
    float grad_scale;                          /* multiplies the gradient first: 1/N x clip */
    int64_t step;                              /* 1 for the first update: bias correction */
};

struct projection_loss;

struct kernels {
    int abi; /* KERNELS_ABI of the backend's build */
    const char *name;
    enum device device;
    int (*threads)(void); /* of the host, that an operation runs on */

    /* Memory. alloc gives 256-byte aligned memory; the bytes are undefined. host_alloc is memory
     * that copies to and from the device run fastest from. */
    struct err *(*alloc)(size_t bytes, void **out);
    void (*release)(void *p);
    struct err *(*host_alloc)(size_t bytes, void **out);
    void (*host_release)(void *p);

    /* Queues and events. */
    struct err *(*queue_create)(struct kernel_queue **out);
    void (*queue_destroy)(struct kernel_queue *q);
    struct err *(*queue_wait)(struct kernel_queue *q); /* all done; the queue's first failure */
    struct err *(*event_create)(struct kernel_event **out);
    void (*event_destroy)(struct kernel_event *e);
    void (*event_record)(struct kernel_event *e, struct kernel_queue *q);
    void (*event_await)(struct kernel_event *e, struct kernel_queue *q);
    /* Seconds between two events that were recorded, and have happened; 0 if they have not. */
    double (*event_between_s)(const struct kernel_event *begin, const struct kernel_event *end);

    /* Moving and filling. upload and download copy between host memory and the device. */
    void (*upload)(struct kernel_queue *q, void *device, const void *host, size_t bytes);
    void (*download)(struct kernel_queue *q, void *host, const void *device, size_t bytes);
    void (*copy)(struct kernel_queue *q, struct tensor dst, struct tensor src); /* casts */
    void (*fill_zero)(struct kernel_queue *q, void *device, size_t bytes);
    /* dst += alpha * src; same shape; casts. */
    void (*add)(struct kernel_queue *q, struct tensor dst, struct tensor src, float alpha);
    /* dst[i] = src[rows[i]]; rows [n] i32; a negative row gives zeros. */
    void (*gather_rows)(struct kernel_queue *q, struct tensor dst, struct tensor src,
                        struct tensor rows);
    /* dst[rows[i]] += src[i]; rows may repeat, negative ones are skipped. The sum's order is fixed.
     */
    void (*scatter_add_rows)(struct kernel_queue *q, struct tensor dst, struct tensor src,
                             struct tensor rows);

    /* c [n, m] = alpha op(a) op(b) + beta c, op by transpose; all of dims 2. */
    void (*matmul)(struct kernel_queue *q, struct tensor c, struct tensor a, bool transpose_a,
                   struct tensor b, bool transpose_b, float alpha, float beta);
    /* x [n, m] += bias [m] in each row; and its backward: dbias [m] += sum of rows of dx. */
    void (*bias_forward)(struct kernel_queue *q, struct tensor x, struct tensor bias);
    void (*bias_backward)(struct kernel_queue *q, struct tensor dbias, struct tensor dx);

    /* RMSNorm over the last dimension: y = x rstd w, rstd = 1/sqrt(mean(x^2) + eps). x is [n, m],
     * or [n, H, d] for the per-head norm with w [d]; rstd is [n] or [n, H], fp32.
     * backward: dx += , dw += . y may be x; dx must not overlap dy. */
    void (*rmsnorm_forward)(struct kernel_queue *q, struct tensor y, struct tensor rstd,
                            struct tensor x, struct tensor w, float eps);
    void (*rmsnorm_backward)(struct kernel_queue *q, struct tensor dx, struct tensor dw,
                             struct tensor dy, struct tensor x, struct tensor w,
                             struct tensor rstd);

    /* RoPE in place, halves convention of the Hugging Face models: (x1, x2) -> (x1 cos - x2 sin,
     * x2 cos + x1 sin), angle = position * inv_freq[j]. x [n, H, d], positions [n] i32, inv_freq
     * [d/2] fp32. inverse rotates back, which is the backward. */
    void (*rope)(struct kernel_queue *q, struct tensor x, struct tensor positions,
                 struct tensor inv_freq, bool inverse);

    /* out = silu(gate) * up; all [n, m]. backward overwrites dgate and dup, which may be gate and
     * up. */
    void (*swiglu_forward)(struct kernel_queue *q, struct tensor out, struct tensor gate,
                           struct tensor up);
    void (*swiglu_backward)(struct kernel_queue *q, struct tensor dgate, struct tensor dup,
                            struct tensor dout, struct tensor gate, struct tensor up);

    void (*attention_forward)(struct kernel_queue *q, const struct attention *a);
    /* delta = rowsum(d_o * o); once before the backward calls of a layer. */
    void (*attention_delta)(struct kernel_queue *q, const struct attention *a);
    /* One call may carry any subset of the pieces; the calls of a layer together carry all. */
    void (*attention_backward)(struct kernel_queue *q, const struct attention *a);

    /* logits [n, V] -> loss [n] fp32 (unweighted cross-entropy in nats, labels [n] i32), and, where
     * weights [n] fp32 is given (data not NULL), logits become d(sum of weight * loss)/d(logits) in
     * place. Without weights the logits are left alone. */
    void (*cross_entropy)(struct kernel_queue *q, struct tensor loss, struct tensor logits,
                          struct tensor labels, struct tensor weights);

    /* *out (fp32 [1], device) += sum of x^2 over all elements, accumulated in double or pairwise.
     */
    void (*sum_squares)(struct kernel_queue *q, struct tensor out, struct tensor x);
    /* One AdamW update of param (fp32 master), m, v by grad, all [n]. copy [n] becomes the new
     * param in its own dtype; data NULL: there is none. */
    void (*adamw)(struct kernel_queue *q, struct tensor param, struct tensor m, struct tensor v,
                  struct tensor grad, struct tensor copy, const struct adamw *options);

    /* Optional: fused forms of the compositions below; NULL where a backend has none. */
    void (*fused_add_rmsnorm)(struct kernel_queue *q, struct tensor sum, struct tensor y,
                              struct tensor rstd, struct tensor a, struct tensor b, struct tensor w,
                              float eps);
    void (*fused_norm_rope)(struct kernel_queue *q, struct tensor y, struct tensor rstd,
                            struct tensor x, struct tensor w, float eps, struct tensor positions,
                            struct tensor inv_freq);
    void (*fused_projection_loss)(struct kernel_queue *q, const struct projection_loss *p);
};

/* The projection onto the vocabulary with cross-entropy, in chunks of rows: logits of all rows are
 * never in memory at once. loss_i = CE(h_i W^T, label_i); gradients are of
 * sum_i weight_i loss_i. */
struct projection_loss {
    struct tensor h;       /* [n, m] */
    struct tensor w;       /* [V, m] */
    struct tensor labels;  /* [n] i32 */
    struct tensor weights; /* [n] fp32; data NULL: loss only, no gradients */
    struct tensor loss;    /* [n] fp32 */
    struct tensor dh;      /* [n, m], overwritten */
    struct tensor dw;      /* [V, m], += */
    struct tensor logits;  /* [chunk, V] scratch; chunk rows at a time */
};

/* Compositions: one call for callers, the backend's fused form where it has one. */

/* sum = a + b; y = rmsnorm(sum). sum may be a. */
void kernel_add_rmsnorm(const struct kernels *k, struct kernel_queue *q, struct tensor sum,
                        struct tensor y, struct tensor rstd, struct tensor a, struct tensor b,
                        struct tensor w, float eps);
/* y = rope(rmsnorm(x)) per head; w.data NULL: rope alone, rstd untouched. y must not be x. */
void kernel_norm_rope(const struct kernels *k, struct kernel_queue *q, struct tensor y,
                      struct tensor rstd, struct tensor x, struct tensor w, float eps,
                      struct tensor positions, struct tensor inv_freq);
void kernel_projection_loss(const struct kernels *k, struct kernel_queue *q,
                            const struct projection_loss *p);

/* The CPU backend: always there. Its threads are those of OpenBLAS. */
const struct kernels *kernels_cpu(void);

#endif
