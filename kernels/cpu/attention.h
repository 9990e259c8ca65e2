/* What the forward and the backward of interval attention share. */
#ifndef KERNELS_CPU_ATTENTION_H
#define KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/tiles.h"
#include "kernels/kernels.h"

struct attention_shape {
    int64_t rows, heads, kv_heads, d;
    int64_t group; /* query heads of one head of K and V */
};

/* Asserts that the tensors belong together. */
struct attention_shape cpu_attention_shape(const struct attention *a);

/* Lines [(row_end - row_begin) group, d] of heads head .. head + group - 1, times factor. */
void cpu_attention_pack(float *lines, const struct tensor *t, int64_t row_begin, int64_t row_end,
                        int64_t head, int64_t group, float factor);
/* scores [lines of the tile, TILE_KEYS] = lines keys^T. The lines begin with query row row_begin;
 * the tile's are among them. */
void cpu_attention_scores(float *scores, const float *lines, const struct tensor *keys,
                          const struct tile *t, int64_t row_begin, int64_t kv_head, int64_t group);

#endif
