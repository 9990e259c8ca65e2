#include "store/checkpoints.h"

#include <stdio.h>

#include "store/events.h"
#include "store/jobs.h"
#include "store/sql.h"

#define SELECT                                                                                     \
    "SELECT id, job_id, attempt, step, deleting, directory, size_bytes, data_position,"            \
    " run_state_json, spec_json, manifest_json, created_s FROM checkpoints"

static void read_checkpoint(struct store_rows *rows, struct store_checkpoint *checkpoint)
{
    *checkpoint = (struct store_checkpoint){
        .id = store_int(rows, 0),
        .job_id = store_int(rows, 1),
        .attempt = store_int(rows, 2),
        .step = store_int(rows, 3),
        .deleting = store_int(rows, 4),
        .directory = store_text(rows, 5),
        .size_bytes = store_int(rows, 6),
        .data_position = store_int(rows, 7),
        .run_state_json = store_text(rows, 8),
        .spec_json = store_text(rows, 9),
        .manifest_json = store_text(rows, 10),
        .created_s = store_real(rows, 11),
    };
}

static struct err *read_one(struct store_rows *rows, struct store_checkpoint *checkpoint,
                            bool *found)
{
    *found = store_next(rows);
    if (*found)
        read_checkpoint(rows, checkpoint);
    return store_finish(rows);
}

static struct err *no_checkpoint(int64_t id)
{
    return err_new(ERR_NOT_FOUND, "there is no checkpoint %lld", (long long)id);
}

struct err *store_checkpoint_get(struct store_tx *tx, int64_t id,
                                 struct store_checkpoint *checkpoint)
{
    struct store_rows rows;
    bool found;
    TRY(store_query(tx, &rows, "read a checkpoint", SELECT " WHERE id = ?", V_INT(id)));
    TRY(read_one(&rows, checkpoint, &found));
    return found ? NULL : no_checkpoint(id);
}

static struct err *newest(struct store_tx *tx, int64_t job_id, struct store_checkpoint *checkpoint,
                          bool *found)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "find the newest checkpoint",
                    SELECT " WHERE job_id = ? AND deleting = 0 ORDER BY step DESC LIMIT 1",
                    V_INT(job_id)));
    return read_one(&rows, checkpoint, found);
}

struct err *store_checkpoint_newest(struct store_tx *tx, int64_t job_id,
                                    struct store_checkpoint *checkpoint)
{
    bool found;
    TRY(newest(tx, job_id, checkpoint, &found));
    return found ? NULL
                 : err_new(ERR_NOT_FOUND, "job %lld has no checkpoint yet", (long long)job_id);
}

static struct err *read_list(struct store_rows *rows, struct store_checkpoints *checkpoints)
{
    *checkpoints = (struct store_checkpoints){0};
    while (store_next(rows)) {
        struct store_checkpoint *checkpoint = STORE_PUSH(rows, checkpoints);
        if (checkpoint)
            read_checkpoint(rows, checkpoint);
    }
    return store_finish(rows);
}

struct err *store_checkpoints_list(struct store_tx *tx, int64_t job_id,
                                   const struct store_page *page,
                                   struct store_checkpoints *checkpoints)
{
    struct store_where where;
    struct store_rows rows;
    store_where_begin(&where, SELECT);
    if (job_id)
        store_where_and(&where, "job_id = ?", V_INT(job_id));
    TRY(store_where_page(tx, &where, page, &rows, "list checkpoints"));
    TRY(read_list(&rows, checkpoints));
    STORE_CUT_PAGE(checkpoints, page->limit);
    return NULL;
}

struct err *store_checkpoints_deleting(struct store_tx *tx, struct store_checkpoints *checkpoints)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "list checkpoints to delete",
                    SELECT " WHERE deleting = 1 ORDER BY id"));
    return read_list(&rows, checkpoints);
}

struct err *store_checkpoint_shards(struct store_tx *tx, int64_t id, struct store_shards *shards)
{
    *shards = (struct store_shards){0};
    struct store_rows rows;
    TRY(store_query(tx, &rows, "list a checkpoint's shards",
                    "SELECT rank, file, size_bytes, xxh3 FROM checkpoint_shards"
                    " WHERE checkpoint_id = ? ORDER BY rank, file",
                    V_INT(id)));
    while (store_next(&rows)) {
        struct store_shard *shard = STORE_PUSH(&rows, shards);
        if (shard)
            *shard = (struct store_shard){store_int(&rows, 0), store_text(&rows, 1),
                                          store_int(&rows, 2), store_text(&rows, 3)};
    }
    return store_finish(&rows);
}

/* ---- writing ---- */

static struct err *check_step_is_free(struct store_tx *tx, int64_t job_id, int64_t step)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "find a checkpoint of a step",
                    "SELECT id FROM checkpoints WHERE job_id = ? AND step = ? AND deleting = 0",
                    V_INT(job_id), V_INT(step)));
    int64_t id = store_next(&rows) ? store_int(&rows, 0) : 0;
    TRY(store_finish(&rows));
    if (id)
        return err_new(ERR_CONFLICT, "job %lld has a checkpoint of step %lld already: %lld",
                       (long long)job_id, (long long)step, (long long)id);
    return NULL;
}

struct err *store_checkpoint_insert(struct store_tx *tx, const struct store_checkpoint *c,
                                    const struct store_shard *shards, size_t shard_count,
                                    int64_t *id)
{
    TRY(check_step_is_free(tx, c->job_id, c->step));
    int64_t size_bytes = 0;
    for (size_t i = 0; i < shard_count; i++)
        size_bytes += shards[i].size_bytes;
    TRY(store_exec(tx, "write a checkpoint",
                   "INSERT INTO checkpoints (job_id, attempt, step, directory, size_bytes,"
                   " data_position, run_state_json, spec_json, manifest_json, created_s)"
                   " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   V_INT(c->job_id), V_INT(c->attempt), V_INT(c->step), V_TEXT(c->directory),
                   V_INT(size_bytes), V_INT(c->data_position), V_TEXT(c->run_state_json),
                   V_TEXT(c->spec_json), V_TEXT(c->manifest_json), V_REAL(c->created_s)));
    *id = sqlite3_last_insert_rowid(tx->db);
    for (size_t i = 0; i < shard_count; i++)
        TRY(store_exec(tx, "write a checkpoint's shard",
                       "INSERT INTO checkpoint_shards (checkpoint_id, rank, file, size_bytes,"
                       " xxh3) VALUES (?, ?, ?, ?, ?)",
                       V_INT(*id), V_INT(shards[i].rank), V_TEXT(shards[i].file),
                       V_INT(shards[i].size_bytes), V_TEXT(shards[i].xxh3)));
    char message[64], data[64];
    snprintf(message, sizeof message, "checkpoint of step %lld is written", (long long)c->step);
    snprintf(data, sizeof data, "{\"id\":%lld,\"step\":%lld}", (long long)*id, (long long)c->step);
    struct store_event event = {
        .job_id = c->job_id,
        .attempt = c->attempt,
        .rank = -1,
        .time_s = c->created_s,
        .type = "checkpoint",
        .message = message,
        .data_json = data,
    };
    return store_event_insert(tx, &event, NULL);
}

struct err *store_checkpoint_mark_deleting(struct store_tx *tx, int64_t id)
{
    struct store_checkpoint checkpoint, last;
    struct store_job job;
    bool found;
    TRY(store_checkpoint_get(tx, id, &checkpoint));
    TRY(store_job_get(tx, checkpoint.job_id, &job));
    TRY(newest(tx, checkpoint.job_id, &last, &found));
    if (found && last.id == id && !(STORE_JOB_MASK(job.state) & STORE_JOB_OVER))
        return err_new(ERR_CONFLICT,
                       "checkpoint %lld is the newest of job %lld, which is not over and would go "
                       "on from it",
                       (long long)id, (long long)job.id);
    struct store_rows rows;
    TRY(store_query(tx, &rows, "find a checkpoint's tasks",
                    "SELECT id FROM tasks WHERE checkpoint_id = ? AND finished_s IS NULL LIMIT 1",
                    V_INT(id)));
    int64_t task_id = store_next(&rows) ? store_int(&rows, 0) : 0;
    TRY(store_finish(&rows));
    if (task_id)
        return err_new(ERR_CONFLICT, "checkpoint %lld is used by task %lld, which is not over",
                       (long long)id, (long long)task_id);
    return store_exec(tx, "mark a checkpoint", "UPDATE checkpoints SET deleting = 1 WHERE id = ?",
                      V_INT(id));
}

struct err *store_checkpoint_delete(struct store_tx *tx, int64_t id)
{
    int64_t changed;
    TRY(store_change(tx, "delete a checkpoint", &changed,
                     "DELETE FROM checkpoints WHERE id = ? AND deleting = 1", V_INT(id)));
    if (changed)
        return NULL;
    struct store_checkpoint checkpoint;
    TRY(store_checkpoint_get(tx, id, &checkpoint));
    return err_new(ERR_CONFLICT, "checkpoint %lld is not marked for deletion", (long long)id);
}
