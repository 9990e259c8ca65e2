/* What the workers have saved becomes rows, and what is not kept is removed.
 *
 * Workers commit a checkpoint on disk by themselves (docs/checkpoints.md); a *look* compares a
 * job's directory with the database and brings the two together:
 *
 *   pool    read the rows; list the directory; check each checkpoint that has no row: manifest,
 *           sizes, hashes
 *   writer  one transaction: rows for those that are whole, and marks on those that are beyond
 *           checkpoint.keep
 *   pool    remove the files of what is marked
 *   writer  remove its rows
 *
 * There is a look when a worker reports a checkpoint and, before an attempt's outcome is written,
 * when its last process is gone. A look may die anywhere and be done again, and two of them may
 * meet: rows are inserted once, and a directory that is gone is gone.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/control/control.h"
#include "store/checkpoint_digest.h"
#include "store/checkpoint_directory.h"
#include "store/checkpoint_manifest.h"
#include "store/checkpoints.h"
#include "store/jobs.h"

/* More rows of one job than anybody keeps. */
#define ROWS_SEEN 100000

struct doomed {
    int64_t id;
    char *path;
};

struct look {
    struct control *control;
    int64_t job;
    void (*done)(void *arg, struct err *err);
    void *arg;
    struct async_item item;

    char *directory; /* of the job's checkpoints */
    int64_t last;    /* step that the database knows: nothing later counts */
    int64_t keep;    /* of the newest, so many stay */
    int64_t *steps;  /* that have a row */
    size_t n_steps;
    struct checkpoint_manifest *found; /* whole, without a row */
    size_t n_found;
    struct doomed *doomed;
    size_t n_doomed;
};

static void free_look(struct look *l)
{
    for (size_t i = 0; i < l->n_found; i++)
        checkpoint_manifest_free(&l->found[i]);
    for (size_t i = 0; i < l->n_doomed; i++)
        free(l->doomed[i].path);
    free(l->found);
    free(l->doomed);
    free(l->steps);
    free(l->directory);
    free(l);
}

static void finish(struct look *l, struct err *err)
{
    if (err)
        log_warning("checkpoints of job %" PRId64 ": %s", l->job, err_message(err));
    if (l->done)
        l->done(l->arg, err);
    else
        err_free(err);
    free_look(l);
}

char *keeper_directory(const struct control *c, int64_t job)
{
    char *path;
    return asprintf(&path, "%s/jobs/%" PRId64 "/checkpoints", c->config->state_directory, job) < 0
               ? NULL
               : path;
}

/* ---- Pool: the rows ---- */

static struct err *keep_of(const struct store_job *job, int64_t *out)
{
    cJSON *spec;
    TRY(json_parse(job->spec_json, strlen(job->spec_json), &spec));
    const cJSON *checkpoint = cJSON_GetObjectItemCaseSensitive(spec, "checkpoint");
    const cJSON *keep = cJSON_GetObjectItemCaseSensitive(checkpoint, "keep");
    *out = cJSON_IsNumber(keep) && keep->valuedouble >= 1 ? (int64_t)keep->valuedouble : 1;
    cJSON_Delete(spec);
    return NULL;
}

static struct err *add_doomed(struct look *l, const struct store_checkpoint *c)
{
    struct doomed *grown = realloc(l->doomed, (l->n_doomed + 1) * sizeof *grown);
    if (!grown)
        return err_no_memory();
    l->doomed = grown;
    l->doomed[l->n_doomed] = (struct doomed){c->id, strdup(c->directory)};
    return l->doomed[l->n_doomed++].path ? NULL : err_no_memory();
}

static struct err *read_rows(struct store_tx *tx, void *arg)
{
    struct look *l = arg;
    struct store_job job;
    struct store_checkpoints rows;
    struct store_page page = {.limit = ROWS_SEEN};
    TRY(store_job_get(tx, l->job, &job));
    TRY(store_checkpoints_list(tx, l->job, &page, &rows));
    l->last = job.step;
    TRY(keep_of(&job, &l->keep));
    l->directory = keeper_directory(l->control, l->job);
    l->steps = calloc(rows.count + 1, sizeof *l->steps);
    if (!l->directory || !l->steps)
        return err_no_memory();
    /* One that is being deleted has its row until its files are gone: it is not found again. */
    for (size_t i = 0; i < rows.count; i++)
        l->steps[l->n_steps++] = rows.items[i].step;
    return NULL;
}

/* ---- Pool: the files ---- */

static struct err *check_shard(const char *path, const struct checkpoint_shard *shard)
{
    char *file, hex[DIGEST_CHARS + 1];
    int64_t bytes;
    if (asprintf(&file, "%s/%s", path, shard->file) < 0)
        return err_no_memory();
    struct err *err = digest_file(file, &bytes, hex);
    if (!err && (bytes != shard->bytes || strcmp(hex, shard->xxh3)))
        err = err_new(ERR_INVALID, "%s is not what its manifest says: damaged", file);
    free(file);
    return err;
}

static struct err *check(struct look *l, int64_t step, const char *path)
{
    struct checkpoint_manifest manifest;
    TRY(checkpoint_manifest_read(path, &manifest));
    struct err *err = NULL;
    if (manifest.facts.job != l->job || manifest.facts.step != step)
        err = err_new(ERR_INVALID, "%s is of job %" PRId64 ", step %" PRId64, path,
                      manifest.facts.job, manifest.facts.step);
    for (int i = 0; !err && i < manifest.facts.world; i++)
        err = check_shard(path, &manifest.shards[i]);
    struct checkpoint_manifest *grown =
        err ? NULL : realloc(l->found, (l->n_found + 1) * sizeof *grown);
    if (!err && !grown)
        err = err_no_memory();
    if (err) {
        checkpoint_manifest_free(&manifest);
        return err;
    }
    l->found = grown;
    l->found[l->n_found++] = manifest;
    return NULL;
}

static bool has_row(const struct look *l, int64_t step)
{
    for (size_t i = 0; i < l->n_steps; i++)
        if (l->steps[i] == step)
            return true;
    return false;
}

static char *path_of(const struct look *l, int64_t step)
{
    char name[CHECKPOINT_NAME_BYTES], *path;
    checkpoint_name(step, name);
    return asprintf(&path, "%s/%s", l->directory, name) < 0 ? NULL : path;
}

static struct err *look_at_files(void *arg)
{
    struct look *l = arg;
    int64_t *steps = NULL;
    size_t count = 0;
    struct err *err = checkpoint_list(l->directory, &steps, &count);
    if (err && err_kind(err) == ERR_NOT_FOUND) {
        err_free(err);
        return NULL;
    }
    for (size_t i = 0; !err && i < count; i++) {
        if (has_row(l, steps[i]) || steps[i] > l->last) /* or its record is yet to come */
            continue;
        char *path = path_of(l, steps[i]);
        err = path ? check(l, steps[i], path) : err_no_memory();
        if (err && (err_kind(err) == ERR_INVALID || err_kind(err) == ERR_NOT_FOUND)) {
            /* the others count all the same */
            log_error("%s: passed over", err_message(err));
            err_free(err);
            err = NULL;
        }
        free(path);
    }
    free(steps);
    return err;
}

/* ---- Writer: rows and marks ---- */

static struct err *insert(struct store_tx *tx, const struct look *l,
                          const struct checkpoint_manifest *m)
{
    int64_t id;
    char run_state[256];
    char *path = path_of(l, m->facts.step), *manifest = json_print(m->json);
    char *spec = json_print(m->facts.spec);
    struct store_shard *shards = calloc((size_t)m->facts.world, sizeof *shards);
    struct err *err = path && manifest && spec && shards ? NULL : err_no_memory();
    snprintf(run_state, sizeof run_state,
             "{\"step\":%" PRId64 ",\"optimizer_step\":%" PRId64 ",\"data_position\":%" PRId64
             ",\"seed\":%" PRIu64 "}",
             m->facts.step, m->facts.optimizer_step, m->facts.data_position, m->facts.seed);
    for (int i = 0; !err && i < m->facts.world; i++)
        shards[i] =
            (struct store_shard){i, m->shards[i].file, m->shards[i].bytes, m->shards[i].xxh3};
    struct store_checkpoint row = {
        .job_id = l->job,
        .attempt = m->facts.attempt,
        .step = m->facts.step,
        .directory = path,
        .data_position = m->facts.data_position,
        .run_state_json = run_state,
        .spec_json = spec,
        .manifest_json = manifest,
        .created_s = m->created_s,
    };
    if (!err)
        err = store_checkpoint_insert(tx, &row, shards, (size_t)m->facts.world, &id);
    if (err && err_kind(err) == ERR_CONFLICT) { /* another look was faster */
        err_free(err);
        err = NULL;
    }
    free(shards);
    free(spec);
    free(manifest);
    free(path);
    return err;
}

static struct err *mark(struct store_tx *tx, const struct look *l)
{
    struct store_checkpoints rows;
    struct store_page page = {.limit = ROWS_SEEN};
    int64_t seen = 0;
    TRY(store_checkpoints_list(tx, l->job, &page, &rows));
    /* By id is by time; after a rewind the later id may have the smaller step, and is the newer. */
    for (size_t i = 0; i < rows.count; i++) {
        const struct store_checkpoint *c = &rows.items[i];
        if (c->deleting || seen++ < l->keep)
            continue;
        struct err *err = store_checkpoint_mark_deleting(tx, c->id);
        if (err && err_kind(err) != ERR_CONFLICT) /* in use: a later look finds it again */
            return err;
        err_free(err);
    }
    return NULL;
}

static struct err *write_rows(struct store_tx *tx, void *arg)
{
    struct look *l = arg;
    for (size_t i = 0; i < l->n_found; i++)
        TRY(insert(tx, l, &l->found[i]));
    TRY(mark(tx, l));
    struct store_checkpoints marked;
    TRY(store_checkpoints_deleting(tx, &marked));
    for (size_t i = 0; i < l->n_doomed; i++)
        free(l->doomed[i].path);
    l->n_doomed = 0; /* this function may run twice */
    for (size_t i = 0; i < marked.count; i++)
        if (marked.items[i].job_id == l->job)
            TRY(add_doomed(l, &marked.items[i]));
    return NULL;
}

/* ---- Removing ---- */

/* Of the doomed, those whose files are gone come first afterwards; n_doomed counts them. */
static struct err *remove_files(void *arg)
{
    struct look *l = arg;
    size_t gone = 0;
    for (size_t i = 0; i < l->n_doomed; i++) {
        struct doomed d = l->doomed[i];
        struct err *err = checkpoint_remove(d.path);
        if (err && err_kind(err) != ERR_NOT_FOUND) {
            log_warning("%s cannot be removed: %s", d.path, err_message(err));
            err_free(err);
            continue;
        }
        err_free(err);
        l->doomed[i] = l->doomed[gone];
        l->doomed[gone++] = d;
    }
    for (size_t i = gone; i < l->n_doomed; i++)
        free(l->doomed[i].path);
    l->n_doomed = gone;
    return NULL;
}

static struct err *delete_rows(struct store_tx *tx, void *arg)
{
    const struct look *l = arg;
    for (size_t i = 0; i < l->n_doomed; i++) {
        struct err *err = store_checkpoint_delete(tx, l->doomed[i].id);
        if (err && err_kind(err) != ERR_NOT_FOUND)
            return err;
        err_free(err);
    }
    return NULL;
}

/* ---- The chain ---- */

static void after_delete(void *arg, struct err *err)
{
    finish(arg, err);
}

static void after_remove(void *arg, struct err *err)
{
    struct look *l = arg;
    if (err || !l->n_doomed)
        finish(l, err);
    else
        async_write(l->control->async, &l->item, delete_rows, l, after_delete);
}

static void after_write(void *arg, struct err *err)
{
    struct look *l = arg;
    if (err || !l->n_doomed)
        finish(l, err);
    else
        async_work(l->control->async, &l->item, remove_files, l, after_remove);
}

static void after_files(void *arg, struct err *err)
{
    struct look *l = arg;
    if (err)
        finish(l, err);
    else
        async_write(l->control->async, &l->item, write_rows, l, after_write);
}

static void after_rows(void *arg, struct err *err)
{
    struct look *l = arg;
    if (err)
        finish(l, err);
    else
        async_work(l->control->async, &l->item, look_at_files, l, after_files);
}

void keeper_look(struct control *c, int64_t job, void (*done)(void *arg, struct err *err),
                 void *arg)
{
    struct look *l = calloc(1, sizeof *l);
    if (!l) {
        if (done)
            done(arg, err_no_memory());
        return;
    }
    l->control = c;
    l->job = job;
    l->done = done;
    l->arg = arg;
    async_read(c->async, &l->item, read_rows, l, after_rows);
}
