/* manifest.json, which makes a directory a checkpoint (docs/checkpoints.md): all that a run needs
 * to go on from it and all that a database's rows hold of it. It names every parameter, every
 * shard, and which elements of which parameter lie in which shard; so a reader knows before it
 * opens a shard that every element is there exactly once.
 */
#ifndef STORE_CHECKPOINT_MANIFEST_H
#define STORE_CHECKPOINT_MANIFEST_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

#define CHECKPOINT_VERSION 1
#define CHECKPOINT_MANIFEST "manifest.json"
#define CHECKPOINT_MAX_WORLD 99999 /* five digits in a shard's name */

/* What all ranks know alike about one checkpoint. */
struct checkpoint_facts {
    int64_t job, attempt;
    int64_t step;           /* of the job, done */
    int64_t optimizer_step; /* of the last update: bias correction goes on from it */
    int64_t data_position;  /* samples consumed, counted over epochs */
    uint64_t seed;          /* the key of all randomness; up to 2^53 */
    int world;
    /* How the writers were set up: for people, since loading does not depend on it. */
    const char *mode;
    int degree, data;
    const cJSON *spec; /* resolved; an object */
};

struct checkpoint_parameter {
    const char *name; /* as in model.safetensors */
    int dims;         /* 1 or 2 */
    int64_t shape[2];
    int64_t count;
};

struct checkpoint_shard {
    const char *file; /* shard-00000-of-00002.safetensors */
    int64_t bytes;
    const char *xxh3; /* XXH3-128 in 32 hex digits */
};

/* Elements [begin, end) of a parameter, row by row, lie in a shard. */
struct checkpoint_piece {
    size_t parameter, shard;
    int64_t begin, end;
};

/* Everything belongs to `json`. */
struct checkpoint_manifest {
    struct checkpoint_facts facts;
    const char
        *id; /* 32 hex digits, the same in the metadata of each shard: they belong together */
    double created_s;                        /* Unix time of the snapshot */
    struct checkpoint_parameter *parameters; /* by name */
    size_t n_parameters;
    struct checkpoint_shard *shards; /* [facts.world], by rank */
    struct checkpoint_piece *pieces; /* by parameter, then begin: each parameter once over */
    size_t n_pieces;
    cJSON *json;
};

/* Checks every field. ERR_INVALID names `path`, which is for messages, and the field. */
struct err *checkpoint_manifest_parse(const char *path, const char *text, size_t length,
                                      struct checkpoint_manifest *out);
/* Of directory/manifest.json; ERR_NOT_FOUND where it is missing. */
struct err *checkpoint_manifest_read(const char *directory, struct checkpoint_manifest *out);
void checkpoint_manifest_free(struct checkpoint_manifest *m);
/* The parameter of this name, or NULL. */
const struct checkpoint_parameter *checkpoint_manifest_find(const struct checkpoint_manifest *m,
                                                            const char *name);

/* ---- For writer and reader ---- */

/* As json_parse, with the path before the message. */
struct err *checkpoint_parse_json(const char *path, const char *text, size_t length, cJSON **out);

/* "shard-00000-of-00002.safetensors" */
#define CHECKPOINT_SHARD_BYTES 64
void checkpoint_shard_name(int rank, int world, char name[static CHECKPOINT_SHARD_BYTES]);

#endif
