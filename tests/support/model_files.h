/* A model directory as Hugging Face lays it out, with random weights: config.json, and one file of
 * weights or shards with their index. */
#ifndef TESTS_MODEL_FILES_H
#define TESTS_MODEL_FILES_H

#include "daemon/base/err.h"

struct model_files {
    const char *directory; /* exists */
    const char *config;    /* config.json's text */
    unsigned long seed;
    int shards;        /* 1: model.safetensors alone */
    const char *dtype; /* "F32", "BF16", "F16", or "mixed": each tensor another one */
    const char *skip;  /* a tensor that is left out, or NULL */
    const char *extra; /* a vector of 4 that is put in with the last tensor, or NULL */
    /* The head beside the embedding that it is tied to: 0 left out, 1 the same, 2 another one. */
    int tied_head;
};

/* Values are parameters_draw's, rounded to the dtype. Whatever is in the directory under the same
 * names is replaced. */
struct err *model_files_write(const struct model_files *m);

/* dtype of tensor number i in the order of the model ("mixed" takes turns). */
const char *model_files_dtype(const struct model_files *m, int i);
/* As model_files_write rounds it. */
float model_files_round(float value, const char *dtype);

#endif
