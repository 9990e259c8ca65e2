/* The parameters of a decoder: their Hugging Face names and shapes, and where each lies in one flat
 * buffer. Gradients, master weights and moments use the same offsets, so ZeRO-1 shards a range of
 * the buffer and never asks what is in it.
 *
 * q, k and v of a layer lie one behind the other, as do gate and up: each group is one matrix for
 * one product.
 */
#ifndef WORKER_PARAMETERS_H
#define WORKER_PARAMETERS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/plan/model.h"
#include "kernels/kernels.h"
#include "store/weights.h"

struct parameter {
    char name[96]; /* as in files of weights */
    int dims;      /* 1 or 2 */
    int64_t shape[2];
    int64_t added_rows; /* the last of shape, which files of weights do not have */
    int64_t offset;     /* elements, in the flat buffer */
    int64_t count;
};

struct parameters {
    struct model_config config;
    int n;
    struct parameter *items; /* in order of offset */
    int64_t count;           /* elements of the flat buffer, alignment gaps included */
};

struct err *parameters_create(const struct model_config *config, struct parameters *out);
void parameters_free(struct parameters *p);
const struct parameter *parameters_find(const struct parameters *p, const char *name);

/* Views of one layer in a flat buffer (of weights or of gradients). data is NULL where the family
 * has no such tensor. */
struct layer_tensors {
    struct tensor input_norm;     /* [h] */
    struct tensor qkv, qkv_bias;  /* [(H + 2 H_kv) d, h], [(H + 2 H_kv) d] */
    struct tensor q_norm, k_norm; /* [d] */
    struct tensor o, o_bias;      /* [h, H d], [h] */
    struct tensor post_norm;      /* [h] */
    struct tensor gate_up;        /* [2 f, h] */
    struct tensor down;           /* [h, f] */
};
struct model_tensors {
    struct tensor embedding; /* [V, h] */
    struct tensor norm;      /* [h] */
    struct tensor lm_head;   /* [V, h]; the embedding where tied */
};
struct layer_tensors parameters_layer(const struct parameters *p, int64_t layer, void *flat,
                                      enum dtype dtype, enum device device);
struct model_tensors parameters_model(const struct parameters *p, void *flat, enum dtype dtype,
                                      enum device device);

/* First weights: elements [begin, begin + count) of the flat buffer into host memory [count], which
 * is zero. Gaps between parameters and what lies behind the last stay as they are. */

/* normal(0, initializer_range) matrices, norms of 1, biases of 0. A function of the seed alone. */
void parameters_draw(const struct parameters *p, uint64_t seed, int64_t begin, int64_t count,
                     float *out);
/* Of files that parameters_expect finds right. Rows that a grown vocabulary adds become the mean of
 * the others. An embedding that is tied to a head which the files have too must be equal to it. */
struct err *parameters_read(const struct parameters *p, const struct weights *weights,
                            int64_t begin, int64_t count, float *out);
/* That the files have every parameter in its shape, and nothing else: ERR_INVALID names the first
 * one that is wrong, and how many there are. */
struct err *parameters_expect(const struct parameters *p, const struct weights *weights);

#endif
