/* The weights of a Hugging Face model directory: model.safetensors, or, where there is none, the
 * shards that model.safetensors.index.json names. Opening reads headers alone; values come through
 * safetensors_read_f32, as much of each tensor as the caller keeps. */
#ifndef STORE_WEIGHTS_H
#define STORE_WEIGHTS_H

#include "daemon/base/file.h"
#include "store/safetensors.h"

struct weights;

struct weights_tensor {
    const struct safetensor *tensor;
    const struct safetensors *file; /* that it lies in */
};

/* ERR_NOT_FOUND: there are none. ERR_INVALID names file and place: an index that is not one, that
 * names a file outside of the directory, one that is missing, or a tensor that lies elsewhere; a
 * tensor in two shards; a file that leads out of the roots (NULL: anywhere). ERR_IO,
 * ERR_NO_MEMORY. */
struct err *weights_open(const char *directory, const struct file_roots *roots,
                         struct weights **out);
void weights_close(struct weights *w); /* NULL is fine */

/* All of them by name; they belong to `w`. */
const struct weights_tensor *weights_tensors(const struct weights *w, size_t *n);
/* NULL: there is none of that name. */
const struct weights_tensor *weights_find(const struct weights *w, const char *name);
/* What a message calls the place that should hold every tensor: the one file, or the index. */
const char *weights_path(const struct weights *w);

#endif
