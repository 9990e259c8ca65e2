#include "daemon/worker/checkpoint/commit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "daemon/worker/checkpoint/compose.h"

#define REASON_FILE "reason"
#define MAX_REASON_BYTES ((size_t)1 << 16)
#define MAX_SIDE_BYTES ((size_t)1 << 26)

/* ---- Set-up ---- */

static struct err *identify(struct commit *c)
{
    char *text = json_print(c->head);
    if (!text)
        return err_no_memory();
    digest_bytes(text, strlen(text), c->id);
    cJSON_free(text);
    return NULL;
}

/* "<parent>/<name>"; NULL without memory. */
static char *join(const char *parent, const char *name)
{
    char *path;
    return asprintf(&path, "%s/%s", parent, name) < 0 ? NULL : path;
}

/* "<parent>/<name>", without memory of its own. */
static bool name_path(char out[PATH_MAX], const char *parent, const char *name)
{
    return snprintf(out, PATH_MAX, "%s/%s", parent, name) < PATH_MAX;
}

static struct err *name_paths(struct commit *c, int64_t attempt, int64_t number)
{
    char name[CHECKPOINT_NAME_BYTES], aborted[CHECKPOINT_NAME_BYTES], shard[CHECKPOINT_SHARD_BYTES];
    checkpoint_name(c->step, name);
    checkpoint_temporary_name(CHECKPOINT_PARTIAL, attempt, c->step, number, c->work_name);
    checkpoint_temporary_name(CHECKPOINT_ABORTED, attempt, c->step, number, aborted);
    checkpoint_shard_name(c->rank, c->world, shard);
    if (!name_path(c->work, c->directory, c->work_name) || !name_path(c->inner, c->work, name) ||
        !name_path(c->aborted, c->directory, aborted) || !name_path(c->final, c->directory, name) ||
        !name_path(c->shard, c->inner, shard))
        return err_new(ERR_INVALID, "%s is too long for the directory of checkpoints",
                       c->directory);
    return NULL;
}

struct err *commit_init(struct commit *c, const char *directory, int rank, int64_t number,
                        const struct checkpoint_facts *facts, const struct parameters *parameters)
{
    *c = (struct commit){
        .directory = directory,
        .rank = rank,
        .world = facts->world,
        .job = facts->job,
        .step = facts->step,
    };
    TRY(name_paths(c, facts->attempt, number));
    c->head = checkpoint_manifest_head(facts, parameters);
    return c->head ? identify(c) : err_no_memory();
}

void commit_free(struct commit *c)
{
    cJSON_Delete(c->head);
    c->head = NULL;
}

/* ---- Looking ---- */

static struct err *exists(const char *path, bool *out)
{
    struct stat st;
    *out = lstat(path, &st) == 0;
    return *out || errno == ENOENT ? NULL : err_errno(errno, "%s", path);
}

/* The name is taken: by this checkpoint, or by one of this step that is as good. */
static struct err *accept_final(const struct commit *c)
{
    struct checkpoint_manifest m;
    struct err *e = checkpoint_manifest_read(c->final, &m);
    if (e)
        return err_wrap(e, "%s is in the way and is no checkpoint", c->final);
    if (m.facts.job != c->job || m.facts.step != c->step)
        e = err_new(ERR_CONFLICT, "%s is in the way: it is step %" PRId64 " of job %" PRId64,
                    c->final, m.facts.step, m.facts.job);
    checkpoint_manifest_free(&m);
    /* Another rank may have renamed it just now. Whoever says that it exists has synced it. */
    return e ? e : file_sync_directory(c->directory);
}

/* What the rank that gave up left for the others. */
static struct err *read_reason(const struct commit *c)
{
    char *path = join(c->aborted, REASON_FILE), *text = NULL;
    size_t length;
    if (!path)
        return err_no_memory();
    struct err *e = file_read(path, MAX_REASON_BYTES, &text, &length);
    free(path);
    if (!e)
        e = err_new(ERR_ABORTED, "the checkpoint of step %" PRId64 " was given up: %s", c->step,
                    text);
    else if (err_kind(e) == ERR_NOT_FOUND) {
        err_free(e);
        e = err_new(ERR_ABORTED, "the checkpoint of step %" PRId64 " was given up by another rank",
                    c->step);
    }
    free(text);
    return e;
}

struct err *commit_look(const struct commit *c, bool *done)
{
    /* In this order: a commit comes before the end of the work directory, and no commit comes
     * behind an abort, so an absent checkpoint means something when it is looked for last. */
    bool work, aborted, final;
    *done = false;
    TRY(exists(c->work, &work));
    TRY(exists(c->aborted, &aborted));
    TRY(exists(c->final, &final));
    if (final) {
        TRY(accept_final(c));
        *done = true;
        return NULL;
    }
    if (aborted)
        return read_reason(c);
    if (!work && c->entered)
        return err_new(ERR_ABORTED, "%s was removed while the checkpoint was written", c->work);
    return NULL;
}

/* ---- Writing ---- */

static struct err *make_directory(const char *path)
{
    return mkdir(path, 0777) == 0 || errno == EEXIST ? NULL : err_errno(errno, "%s", path);
}

struct err *commit_enter(struct commit *c, bool *entered)
{
    if (c->rank == 0) {
        TRY(make_directory(c->work));
        c->entered = true;
        TRY(make_directory(c->inner));
    } else {
        TRY(exists(c->inner, &c->entered));
    }
    *entered = c->entered;
    return NULL;
}

static char *side_path(const struct commit *c, int rank)
{
    char name[32];
    snprintf(name, sizeof name, "rank-%05d.json", rank);
    return join(c->work, name);
}

/* Writes JSON to a path of its own, synced; consumes json. NULL for either: no memory. */
static struct err *write_json(const char *path, cJSON *json)
{
    char *text = json_print(json);
    cJSON_Delete(json);
    struct err *e = text && path ? file_replace(path, text, strlen(text)) : err_no_memory();
    cJSON_free(text);
    return e;
}

struct err *commit_shard(const struct commit *c, double created_s, const cJSON *ranges)
{
    char xxh3[DIGEST_CHARS + 1];
    int64_t bytes;
    TRY(digest_file(c->shard, &bytes, xxh3));
    cJSON *side = cJSON_CreateObject();
    cJSON *shard = checkpoint_manifest_shard(c->rank, c->world, bytes, xxh3, ranges);
    if (!side || !shard || !cJSON_AddStringToObject(side, "id", c->id) ||
        !cJSON_AddNumberToObject(side, "created", created_s) ||
        !cJSON_AddItemToObject(side, "shard", shard)) {
        cJSON_Delete(shard);
        cJSON_Delete(side);
        return err_no_memory();
    }
    char *path = side_path(c, c->rank);
    struct err *e = write_json(path, side);
    free(path);
    return e;
}

/* ---- Committing ---- */

/* One rank's side file: its shard's entry goes to the end of `shards`, rank 0's time to created_s.
 */
static struct err *take_side(const struct commit *c, int rank, cJSON *shards, double *created_s)
{
    char *path = side_path(c, rank), *text = NULL;
    cJSON *side = NULL;
    size_t length;
    struct err *e = path ? file_read(path, MAX_SIDE_BYTES, &text, &length) : err_no_memory();
    if (!e)
        e = checkpoint_parse_json(path, text, length, &side);
    free(text);
    if (!e) {
        const char *id = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(side, "id"));
        const cJSON *created = cJSON_GetObjectItemCaseSensitive(side, "created");
        cJSON *shard = cJSON_DetachItemFromObjectCaseSensitive(side, "shard");
        if (!id || strcmp(id, c->id) != 0 || !cJSON_IsNumber(created) || !shard) {
            cJSON_Delete(shard);
            e = err_new(ERR_INTERNAL,
                        "%s: rank %d writes another checkpoint than rank %d: job, attempt, steps, "
                        "data position, seed, spec and parameters must agree",
                        path, rank, c->rank);
        } else {
            cJSON_AddItemToArray(shards, shard);
            if (rank == 0)
                *created_s = created->valuedouble;
        }
    }
    cJSON_Delete(side);
    free(path);
    return e;
}

/* The manifest that the side files make: the same from every rank. */
static struct err *compose(const struct commit *c, const char *path, cJSON **out)
{
    double created_s = 0;
    cJSON *shards = cJSON_CreateArray();
    struct err *e = shards ? NULL : err_no_memory();
    for (int r = 0; r < c->world && !e; r++)
        e = take_side(c, r, shards, &created_s);
    if (e) {
        cJSON_Delete(shards);
        return e;
    }
    *out = checkpoint_manifest_whole(c->head, c->id, created_s, shards);
    char *text = json_print(*out);
    struct checkpoint_manifest m = {0};
    /* Nothing is committed that could not be loaded. */
    e = text ? checkpoint_manifest_parse(path, text, strlen(text), &m) : err_no_memory();
    checkpoint_manifest_free(&m);
    cJSON_free(text);
    if (e)
        cJSON_Delete(*out);
    return e;
}

static struct err *rename_to(const char *from, const char *to)
{
    return rename(from, to) == 0 ? NULL : err_errno(errno, "%s: cannot be renamed to %s", from, to);
}

static struct err *commit_with(const struct commit *c, const char *mine, const char *manifest)
{
    cJSON *json;
    TRY(compose(c, manifest, &json));
    TRY(write_json(mine, json));
    TRY(rename_to(mine, manifest));
    TRY(file_sync_directory(c->inner));
    TRY(rename_to(c->inner, c->final));
    return file_sync_directory(c->directory);
}

static struct err *find_missing(const struct commit *c, int *missing)
{
    bool there = true;
    *missing = -1;
    for (int r = 0; r < c->world && there; r++) {
        char *path = side_path(c, r);
        struct err *e = path ? exists(path, &there) : err_no_memory();
        free(path);
        TRY(e);
        if (!there)
            *missing = r;
    }
    return NULL;
}

struct err *commit_try(const struct commit *c, int *missing)
{
    TRY(find_missing(c, missing));
    if (*missing >= 0)
        return NULL;
    char name[32];
    snprintf(name, sizeof name, "manifest-%05d.json", c->rank);
    char *mine = join(c->work, name), *manifest = join(c->inner, CHECKPOINT_MANIFEST);
    struct err *e = mine && manifest ? commit_with(c, mine, manifest) : err_no_memory();
    free(manifest);
    free(mine);
    return e;
}

/* ---- The end ---- */

/* Best effort: what stays is swept before the next checkpoint. */
static void discard_work(const struct commit *c)
{
    err_free(checkpoint_discard(c->directory, c->work_name));
}

/* directory: c->work or c->aborted */
static void leave_reason(const struct commit *c, const char *directory, const struct err *reason)
{
    char *path = join(directory, REASON_FILE), *text;
    if (path && asprintf(&text, "rank %d: %s", c->rank, err_message(reason)) >= 0) {
        err_free(file_replace(path, text, strlen(text)));
        free(text);
    }
    free(path);
}

/* Of an aborted work directory all but the reason. */
static void empty_aborted(const struct commit *c)
{
    char name[CHECKPOINT_NAME_BYTES];
    checkpoint_name(c->step, name);
    char *path = join(c->aborted, name);
    if (path)
        err_free(checkpoint_remove_tree(path));
    free(path);
}

void commit_abort(const struct commit *c, const struct err *reason)
{
    bool work = false, aborted = true;
    err_free(exists(c->work, &work));
    err_free(exists(c->aborted, &aborted));
    if (work && !aborted)
        leave_reason(c, c->work, reason);
    /* Where another rank was first, the target is there and not empty, or the source is gone. */
    if (rename(c->work, c->aborted) == 0)
        empty_aborted(c);
    else if (work)
        discard_work(c);
    else if (mkdir(c->aborted, 0777) ==
             0) /* it is not there yet: without this rank it is nothing */
        leave_reason(c, c->aborted, reason);
}

void commit_clear(const struct commit *c)
{
    discard_work(c);
}
