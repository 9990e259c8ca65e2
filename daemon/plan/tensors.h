/* The tensors of a decoder by the names and in the shapes of a Hugging Face checkpoint: what the
 * API asks of a file of weights and the worker reads from it. */
#ifndef PLAN_TENSORS_H
#define PLAN_TENSORS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/plan/model.h"

struct model_tensor {
    char name[96];
    int dims; /* 1 or 2 */
    int64_t shape[2];
    bool starts_group; /* false: lies behind the tensor before, as one matrix or vector with it */
};

/* Where an iteration stands; {0} at the start. */
struct model_tensors_walk {
    int64_t layer;
    int row;
};

/* The next tensor in the order in which they lie in memory; false: there is no more. */
bool model_tensors_next(const struct model_config *model, struct model_tensors_walk *walk,
                        struct model_tensor *out);

#endif
