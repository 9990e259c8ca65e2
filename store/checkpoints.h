/* Checkpoints and their shards. A checkpoint exists exactly when its row is committed. */
#ifndef STORE_CHECKPOINTS_H
#define STORE_CHECKPOINTS_H

#include "store/store.h"

struct store_shard {
    int64_t rank;
    const char *file; /* relative to the checkpoint's directory */
    int64_t size_bytes;
    const char *xxh3; /* 32 hex digits: XXH3-128 */
};

struct store_checkpoint {
    int64_t id;
    int64_t job_id;
    int64_t attempt;
    int64_t step;
    bool deleting; /* its files are being removed; no restart takes it */
    const char *directory;
    int64_t size_bytes;         /* of the shards, a sum */
    int64_t data_position;      /* samples consumed, over epochs */
    const char *run_state_json; /* schedule, RNG key and what else the worker needs to go on */
    const char *spec_json;      /* resolved, as it was */
    const char *manifest_json;
    double created_s;
};

struct store_checkpoints {
    struct store_checkpoint *items;
    size_t count;
    bool more;
};

struct store_shards {
    struct store_shard *items;
    size_t count;
};

/* Writes the checkpoint (all but id, deleting, size_bytes is read) with its shards and a
 * "checkpoint" event. A committed one of the same job and step is refused (ERR_CONFLICT). */
struct err *store_checkpoint_insert(struct store_tx *tx, const struct store_checkpoint *checkpoint,
                                    const struct store_shard *shards, size_t shard_count,
                                    int64_t *id);
struct err *store_checkpoint_get(struct store_tx *tx, int64_t id,
                                 struct store_checkpoint *checkpoint);
/* The one of the largest step that is not being deleted; ERR_NOT_FOUND when there is none. */
struct err *store_checkpoint_newest(struct store_tx *tx, int64_t job_id,
                                    struct store_checkpoint *checkpoint);
/* Of one job, or (job_id 0) of all. */
struct err *store_checkpoints_list(struct store_tx *tx, int64_t job_id,
                                   const struct store_page *page,
                                   struct store_checkpoints *checkpoints);
/* Those whose files are still to be removed, of all jobs. */
struct err *store_checkpoints_deleting(struct store_tx *tx, struct store_checkpoints *checkpoints);
struct err *store_checkpoint_shards(struct store_tx *tx, int64_t id, struct store_shards *shards);
/* First step of deleting, before a file is touched. ERR_CONFLICT when a task that is not over uses
 * it, or when it is the newest one of a job that is not over. */
struct err *store_checkpoint_mark_deleting(struct store_tx *tx, int64_t id);
/* Second step, when the files are gone. */
struct err *store_checkpoint_delete(struct store_tx *tx, int64_t id);

#endif
