/* Compositions: what a backend may fuse, spelled with the operations that every backend has. */
#include "kernels/kernels.h"

#include <assert.h>

void kernel_add_rmsnorm(const struct kernels *k, struct kernel_queue *q, struct tensor sum,
                        struct tensor y, struct tensor rstd, struct tensor a, struct tensor b,
                        struct tensor w, float eps)
{
    if (k->fused_add_rmsnorm) {
        k->fused_add_rmsnorm(q, sum, y, rstd, a, b, w, eps);
        return;
    }
    if (sum.data != a.data)
        k->copy(q, sum, a);
    k->add(q, sum, b, 1.0f);
    k->rmsnorm_forward(q, y, rstd, sum, w, eps);
}

void kernel_norm_rope(const struct kernels *k, struct kernel_queue *q, struct tensor y,
                      struct tensor rstd, struct tensor x, struct tensor w, float eps,
                      struct tensor positions, struct tensor inv_freq)
{
    if (k->fused_norm_rope) {
        k->fused_norm_rope(q, y, rstd, x, w, eps, positions, inv_freq);
        return;
    }
    if (w.data)
        k->rmsnorm_forward(q, y, rstd, x, w, eps);
    else
        k->copy(q, y, x);
    k->rope(q, y, positions, inv_freq, false);
}

void kernel_projection_loss(const struct kernels *k, struct kernel_queue *q,
                            const struct projection_loss *p)
{
    if (k->fused_projection_loss) {
        k->fused_projection_loss(q, p);
        return;
    }
    bool gradients = p->weights.data;
    int64_t n = p->h.shape[0], chunk = p->logits.shape[0];
    assert(chunk > 0 || n == 0);
    for (int64_t begin = 0; begin < n; begin += chunk) {
        int64_t rows = n - begin < chunk ? n - begin : chunk;
        struct tensor logits = tensor_rows(p->logits, 0, rows);
        struct tensor h = tensor_rows(p->h, begin, rows);
        struct tensor weights = gradients ? tensor_rows(p->weights, begin, rows) : p->weights;
        k->matmul(q, logits, h, false, p->w, true, 1.0f, 0.0f);
        k->cross_entropy(q, tensor_rows(p->loss, begin, rows), logits,
                         tensor_rows(p->labels, begin, rows), weights);
        if (!gradients)
            continue;
        k->matmul(q, tensor_rows(p->dh, begin, rows), logits, false, p->w, false, 1.0f, 0.0f);
        k->matmul(q, p->dw, logits, true, h, false, 1.0f, 1.0f);
    }
}
