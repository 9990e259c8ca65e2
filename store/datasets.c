#include "store/datasets.h"

#include "store/jobs.h"
#include "store/sql.h"

#define SELECT                                                                                     \
    "SELECT id, hash, name, deleting, path, spec_json, documents, tokens, bytes, unigram_entropy," \
    " stats_json, created_s FROM datasets"

static void read_dataset(struct store_rows *rows, struct store_dataset *dataset)
{
    *dataset = (struct store_dataset){
        .id = store_int(rows, 0),
        .hash = store_text(rows, 1),
        .name = store_text(rows, 2),
        .deleting = store_int(rows, 3),
        .path = store_text(rows, 4),
        .spec_json = store_text(rows, 5),
        .documents = store_int(rows, 6),
        .tokens = store_int(rows, 7),
        .bytes = store_int(rows, 8),
        .unigram_entropy = store_real_or_nan(rows, 9),
        .stats_json = store_text(rows, 10),
        .created_s = store_real(rows, 11),
    };
}

static struct err *read_one(struct store_rows *rows, struct store_dataset *dataset, bool *found)
{
    *found = store_next(rows);
    if (*found)
        read_dataset(rows, dataset);
    return store_finish(rows);
}

static struct err *no_dataset(int64_t id)
{
    return err_new(ERR_NOT_FOUND, "there is no dataset %lld", (long long)id);
}

struct err *store_dataset_get(struct store_tx *tx, int64_t id, struct store_dataset *dataset)
{
    struct store_rows rows;
    bool found;
    TRY(store_query(tx, &rows, "read a dataset", SELECT " WHERE id = ?", V_INT(id)));
    TRY(read_one(&rows, dataset, &found));
    return found ? NULL : no_dataset(id);
}

struct err *store_dataset_find(struct store_tx *tx, const char *hash, struct store_dataset *dataset)
{
    struct store_rows rows;
    bool found;
    TRY(store_query(tx, &rows, "find a dataset", SELECT " WHERE hash = ?", V_TEXT(hash)));
    TRY(read_one(&rows, dataset, &found));
    return found ? NULL : err_new(ERR_NOT_FOUND, "there is no dataset of hash %s", hash);
}

struct err *store_datasets_list(struct store_tx *tx, const struct store_page *page,
                                struct store_datasets *datasets)
{
    *datasets = (struct store_datasets){0};
    struct store_where where;
    struct store_rows rows;
    store_where_begin(&where, SELECT);
    TRY(store_where_page(tx, &where, page, &rows, "list datasets"));
    while (store_next(&rows)) {
        struct store_dataset *dataset = STORE_PUSH(&rows, datasets);
        if (dataset)
            read_dataset(&rows, dataset);
    }
    STORE_CUT_PAGE(datasets, page->limit);
    return store_finish(&rows);
}

struct err *store_dataset_put(struct store_tx *tx, const struct store_dataset *d, double now_s,
                              int64_t *id)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "write a dataset",
                    "INSERT INTO datasets (hash, name, path, spec_json, documents, tokens, bytes,"
                    " unigram_entropy, stats_json, created_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
                    " ON CONFLICT (hash) DO UPDATE SET deleting = 0, path = excluded.path,"
                    " name = coalesce(excluded.name, name), documents = excluded.documents,"
                    " tokens = excluded.tokens, bytes = excluded.bytes,"
                    " unigram_entropy = excluded.unigram_entropy, stats_json = excluded.stats_json"
                    " RETURNING id",
                    V_TEXT(d->hash), V_TEXT(d->name), V_TEXT(d->path), V_TEXT(d->spec_json),
                    V_INT(d->documents), V_INT(d->tokens), V_INT(d->bytes),
                    V_REAL(d->unigram_entropy), V_TEXT(d->stats_json), V_REAL(now_s)));
    while (store_next(&rows))
        *id = store_int(&rows, 0);
    return store_finish(&rows);
}

struct err *store_dataset_mark_deleting(struct store_tx *tx, int64_t id)
{
    struct store_dataset dataset;
    TRY(store_dataset_get(tx, id, &dataset));
    struct store_rows rows;
    TRY(store_query(tx, &rows, "find a dataset's jobs",
                    "SELECT id FROM jobs WHERE dataset_id = ? AND finished_s IS NULL LIMIT 1",
                    V_INT(id)));
    int64_t job_id = store_next(&rows) ? store_int(&rows, 0) : 0;
    TRY(store_finish(&rows));
    if (job_id)
        return err_new(ERR_CONFLICT, "dataset %lld is used by job %lld, which is not over",
                       (long long)id, (long long)job_id);
    return store_exec(tx, "mark a dataset", "UPDATE datasets SET deleting = 1 WHERE id = ?",
                      V_INT(id));
}

struct err *store_dataset_delete(struct store_tx *tx, int64_t id)
{
    int64_t changed;
    TRY(store_change(tx, "delete a dataset", &changed,
                     "DELETE FROM datasets WHERE id = ? AND deleting = 1", V_INT(id)));
    if (changed)
        return NULL;
    struct store_dataset dataset;
    TRY(store_dataset_get(tx, id, &dataset));
    return err_new(ERR_CONFLICT, "dataset %lld is not marked for deletion", (long long)id);
}
