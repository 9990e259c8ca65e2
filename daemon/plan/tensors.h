/* The tensors of a decoder by the names and in the shapes of a Hugging Face checkpoint. They are
 * the names that parameters have everywhere: in memory, in checkpoints, in what is read and in what
 * is exported. */
#ifndef PLAN_TENSORS_H
#define PLAN_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/plan/model.h"

struct model_tensor {
    char name[96];
    int dims; /* 1 or 2 */
    int64_t shape[2];
    int64_t added_rows; /* the last rows of shape, which files of weights do not have */
    bool starts_group;  /* false: lies behind the tensor before, as one matrix or vector with it */
};

/* Where an iteration stands; {0} at the start. */
struct model_tensors_walk {
    int64_t layer;
    int row;
};

/* The next tensor in the order in which they lie in memory; false: there is no more. */
bool model_tensors_next(const struct model_config *model, struct model_tensors_walk *walk,
                        struct model_tensor *out);

/* A tensor that files of weights have. */
struct tensor_seen {
    const char *name, *file;
    int dims;
    const int64_t *shape;
    const char *dtype; /* as safetensors names it */
};

/* Whether `seen` [n], sorted by name, are the decoder's tensors: every one of them in its shape and
 * as numbers of 16 or 32 bits, and nothing else but what the transformers library leaves out too.
 * `where` names the place that should hold them all. Each difference is a problem at `pointer`, up
 * to TENSORS_MAX_PROBLEMS: files of another model have hundreds. */
#define TENSORS_MAX_PROBLEMS 20
void model_tensors_check(const struct model_config *model, const struct tensor_seen *seen, size_t n,
                         const char *where, const char *pointer, struct problems *problems);

#endif
