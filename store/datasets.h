/* Prepared datasets (artifacts). A row exists when the artifact is complete; until then there is
 * the task that makes it. */
#ifndef STORE_DATASETS_H
#define STORE_DATASETS_H

#include "store/store.h"

struct store_dataset {
    int64_t id;
    const char *hash;      /* hex, of everything that made it; unique */
    const char *name;      /* or NULL */
    bool deleting;         /* its files are being removed: no job may take it */
    const char *path;      /* of the directory, absolute */
    const char *spec_json; /* the `data` object that made it first */
    int64_t documents;
    int64_t tokens;
    int64_t bytes;
    double unigram_entropy; /* nats per token */
    const char *stats_json; /* or NULL */
    double created_s;
};

struct store_datasets {
    struct store_dataset *items;
    size_t count;
    bool more;
};

/* Writes it, or finds the one of that hash (whose path and numbers are then taken from `dataset`,
 * as it was made again). All but id, deleting and created_s is read. */
struct err *store_dataset_put(struct store_tx *tx, const struct store_dataset *dataset,
                              double now_s, int64_t *id);
struct err *store_dataset_get(struct store_tx *tx, int64_t id, struct store_dataset *dataset);
struct err *store_dataset_find(struct store_tx *tx, const char *hash,
                               struct store_dataset *dataset);
struct err *store_datasets_list(struct store_tx *tx, const struct store_page *page,
                                struct store_datasets *datasets);
/* First step of deleting. ERR_CONFLICT when a job that is not over uses it (named). */
struct err *store_dataset_mark_deleting(struct store_tx *tx, int64_t id);
/* Second step, when the files are gone: jobs that used it lose the reference. */
struct err *store_dataset_delete(struct store_tx *tx, int64_t id);

#endif
