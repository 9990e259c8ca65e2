/* safetensors files: named tensors of a checkpoint or a published model.
 *
 * A file is an 8-byte little-endian header length, a JSON header, and the tensors' bytes end to
 * end. Everything the header says is checked before anything is believed: tensors that overlap,
 * leave holes, reach beyond the file or contradict their shape are ERR_INVALID, and the message
 * names file and tensor. Little-endian machines only.
 *
 * A `struct safetensors` may be read by several threads at once.
 */
#ifndef STORE_SAFETENSORS_H
#define STORE_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

enum safetensors_dtype {
    SAFETENSORS_F64,
    SAFETENSORS_I64,
    SAFETENSORS_U64,
    SAFETENSORS_F32,
    SAFETENSORS_I32,
    SAFETENSORS_U32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I16,
    SAFETENSORS_U16,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_I8,
    SAFETENSORS_U8,
    SAFETENSORS_BOOL,
};
size_t safetensors_dtype_bytes(enum safetensors_dtype dtype);
const char *safetensors_dtype_name(enum safetensors_dtype dtype);

#define SAFETENSORS_MAX_DIMS 8

struct safetensor {
    const char *name;
    enum safetensors_dtype dtype;
    int dims; /* 0 for a scalar */
    int64_t shape[SAFETENSORS_MAX_DIMS];
    int64_t elements; /* product of shape */
    size_t bytes;
    /* Reading: the mapped file, possibly not aligned to the dtype; a file that somebody shortens
     * while it is mapped kills the reader, so weights are better read by safetensors_read_f32.
     * Writing: the caller's memory. */
    const void *data;
};

/* ---- Reading ---- */

struct safetensors;

/* Maps the file and checks its header. ERR_NOT_FOUND, ERR_INVALID, ERR_IO, ERR_NO_MEMORY. */
struct err *safetensors_open(const char *path, struct safetensors **out);
/* Likewise, refusing a header of more bytes: parsed it takes some ten times as much memory. */
struct err *safetensors_open_within(const char *path, size_t max_header_bytes,
                                    struct safetensors **out);
void safetensors_close(struct safetensors *s); /* NULL is fine */

/* Everything below belongs to `s` and lives until safetensors_close. */
const char *safetensors_path(const struct safetensors *s);
size_t safetensors_header_bytes(const struct safetensors *s);
size_t safetensors_count(const struct safetensors *s);
const struct safetensor *safetensors_at(const struct safetensors *s, size_t index); /* by name */
const struct safetensor *safetensors_find(const struct safetensors *s, const char *name);
/* Value of a key of the header's __metadata__, or NULL. */
const char *safetensors_metadata(const struct safetensors *s, const char *key);

/* Elements [begin, begin + count) as fp32, read from the file. F32, BF16 and F16 only; another
 * dtype, or a file that shrank since it was opened, is an error. */
struct err *safetensors_read_f32(const struct safetensors *s, const struct safetensor *tensor,
                                 int64_t begin, int64_t count, float *out);

/* ---- Writing ---- */

struct safetensors_pair {
    const char *key;
    const char *value;
};

/* Writes `<path>.partial`, syncs it and renames it to `path`, so `path` is whole or absent. Tensors
 * lie by falling element size, then name: the same tensors make the same bytes in whatever order
 * they are given. `elements` and `bytes` of the tensors are not read: shape and dtype say it. Names
 * must differ and be UTF-8. */
struct err *safetensors_write(const char *path, const struct safetensor *tensors, size_t n,
                              const struct safetensors_pair *metadata, size_t n_metadata);

#endif
