#include "daemon/worker/checkpoint/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/base/log.h"
#include "store/checkpoint_digest.h"
#include "store/checkpoint_directory.h"
#include "store/safetensors.h"

struct checkpoint {
    char *path;
    struct checkpoint_manifest manifest;
};

/* ---- Opening ---- */

static char *shard_path(const struct checkpoint *c, size_t shard)
{
    char *path;
    return asprintf(&path, "%s/%s", c->path, c->manifest.shards[shard].file) < 0 ? NULL : path;
}

static struct err *check_size(const char *path, int64_t bytes)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return errno == ENOENT
                   ? err_new(ERR_INVALID, "%s is missing: the checkpoint is damaged", path)
                   : err_errno(errno, "%s", path);
    if (!S_ISREG(st.st_mode) || st.st_size != bytes)
        return err_new(ERR_INVALID,
                       "%s has %lld bytes, but its manifest says %" PRId64
                       ": the checkpoint is damaged",
                       path, (long long)st.st_size, bytes);
    return NULL;
}

static struct err *check_digest(const char *path, const char *xxh3)
{
    char found[DIGEST_CHARS + 1];
    int64_t bytes;
    TRY(digest_file(path, &bytes, found));
    if (strcmp(found, xxh3) != 0)
        return err_new(ERR_INVALID,
                       "%s has XXH3 %s, but its manifest says %s: the checkpoint is damaged", path,
                       found, xxh3);
    return NULL;
}

static struct err *open_at(struct checkpoint *c, bool verify_hashes)
{
    TRY(checkpoint_manifest_read(c->path, &c->manifest));
    for (int r = 0; r < c->manifest.facts.world; r++) {
        const struct checkpoint_shard *shard = &c->manifest.shards[r];
        char *path = shard_path(c, (size_t)r);
        struct err *e = path ? check_size(path, shard->bytes) : err_no_memory();
        if (!e && verify_hashes)
            e = check_digest(path, shard->xxh3);
        free(path);
        TRY(e);
    }
    return NULL;
}

struct err *checkpoint_open(const char *path, bool verify_hashes, struct checkpoint **out)
{
    *out = NULL;
    struct checkpoint *c = calloc(1, sizeof *c);
    if (!c)
        return err_no_memory();
    c->path = strdup(path);
    struct err *e = c->path ? open_at(c, verify_hashes) : err_no_memory();
    if (e)
        checkpoint_close(c);
    else
        *out = c;
    return e;
}

void checkpoint_close(struct checkpoint *c)
{
    if (!c)
        return;
    checkpoint_manifest_free(&c->manifest);
    free(c->path);
    free(c);
}

const char *checkpoint_path(const struct checkpoint *c)
{
    return c->path;
}

const struct checkpoint_manifest *checkpoint_manifest(const struct checkpoint *c)
{
    return &c->manifest;
}

/* ---- The parameters asked for, and those that are there ---- */

/* "[4, 3]" */
static void shape_text(int dims, const int64_t *shape, char text[static 64])
{
    if (dims == 2)
        snprintf(text, 64, "[%" PRId64 ", %" PRId64 "]", shape[0], shape[1]);
    else
        snprintf(text, 64, "[%" PRId64 "]", shape[0]);
}

static bool is_among(const struct parameters *parameters, const char *name)
{
    for (int i = 0; i < parameters->n; i++)
        if (strcmp(parameters->items[i].name, name) == 0)
            return true;
    return false;
}

static struct err *check_parameters(const struct checkpoint *c, const struct parameters *wanted)
{
    for (int i = 0; i < wanted->n; i++) {
        const struct parameter *p = &wanted->items[i];
        const struct checkpoint_parameter *found = checkpoint_manifest_find(&c->manifest, p->name);
        if (!found)
            return err_new(ERR_INVALID, "checkpoint %s has no %s, which the model asks for",
                           c->path, p->name);
        if (found->dims != p->dims ||
            memcmp(found->shape, p->shape, (size_t)p->dims * sizeof *p->shape) != 0) {
            char has[64], wants[64];
            shape_text(found->dims, found->shape, has);
            shape_text(p->dims, p->shape, wants);
            return err_new(ERR_INVALID, "checkpoint %s: %s has shape %s, but the model asks for %s",
                           c->path, p->name, has, wants);
        }
    }
    /* Names differ on both sides, so any more of them are strangers. */
    for (size_t i = 0; i < c->manifest.n_parameters && c->manifest.n_parameters > (size_t)wanted->n;
         i++)
        if (!is_among(wanted, c->manifest.parameters[i].name))
            return err_new(ERR_INVALID,
                           "checkpoint %s has %.200s, of which the model knows nothing", c->path,
                           c->manifest.parameters[i].name);
    return NULL;
}

/* ---- Reading ---- */

/* One shard is open at a time: pieces that follow each other mostly lie in the same. */
struct reading {
    const struct checkpoint *checkpoint;
    int64_t begin, count;
    float *out[3]; /* as kind_names; [count] */
    struct safetensors *file;
    size_t shard; /* that file is */
    cJSON *ranges;
};

static const char *const kind_names[] = {"weights", "m", "v"};

static void close_shard(struct reading *r)
{
    cJSON_Delete(r->ranges);
    safetensors_close(r->file);
    r->ranges = NULL;
    r->file = NULL;
}

static struct err *check_shard(struct reading *r, const char *path)
{
    const char *id = safetensors_metadata(r->file, "checkpoint");
    const char *ranges = safetensors_metadata(r->file, "ranges");
    if (!id || strcmp(id, r->checkpoint->manifest.id) != 0)
        return err_new(ERR_INVALID, "%s belongs to another checkpoint than its manifest", path);
    if (!ranges)
        return err_new(ERR_INVALID, "%s: the metadata has no ranges", path);
    struct err *e =
        checkpoint_parse_json("the metadata's ranges", ranges, strlen(ranges), &r->ranges);
    return e ? err_wrap(e, "%s", path) : NULL;
}

static struct err *open_shard(struct reading *r, size_t shard)
{
    if (r->file && r->shard == shard)
        return NULL;
    close_shard(r);
    char *path = shard_path(r->checkpoint, shard);
    struct err *e = path ? safetensors_open(path, &r->file) : err_no_memory();
    if (!e)
        e = check_shard(r, path);
    r->shard = shard;
    free(path);
    return e;
}

/* The shard says of its elements what the manifest says. */
static struct err *check_piece(const struct reading *r, const char *name,
                               const struct checkpoint_piece *piece)
{
    const cJSON *range = cJSON_GetObjectItemCaseSensitive(r->ranges, name);
    const cJSON *begin = cJSON_GetArrayItem(range, 0), *end = cJSON_GetArrayItem(range, 1);
    if (!cJSON_IsNumber(begin) || !cJSON_IsNumber(end) ||
        begin->valuedouble != (double)piece->begin || end->valuedouble != (double)piece->end)
        return err_new(ERR_INVALID,
                       "%s: the range of %.200s is not %" PRId64 " to %" PRId64
                       " as the manifest says",
                       safetensors_path(r->file), name, piece->begin, piece->end);
    return NULL;
}

/* Elements [begin, end) of a parameter, all in one piece, to where they belong. */
static struct err *read_piece(struct reading *r, const struct parameter *p,
                              const struct checkpoint_piece *piece, int64_t begin, int64_t end)
{
    TRY(open_shard(r, piece->shard));
    TRY(check_piece(r, p->name, piece));
    for (size_t kind = 0; kind < sizeof kind_names / sizeof *kind_names; kind++) {
        char name[sizeof p->name + 16];
        snprintf(name, sizeof name, "%s/%s", kind_names[kind], p->name);
        const struct safetensor *t = safetensors_find(r->file, name);
        if (!t || t->dtype != SAFETENSORS_F32 || t->elements != piece->end - piece->begin)
            return err_new(ERR_INVALID, "%s has no tensor %s of %" PRId64 " F32 elements",
                           safetensors_path(r->file), name, piece->end - piece->begin);
        TRY(safetensors_read_f32(r->file, t, begin - piece->begin, end - begin,
                                 r->out[kind] + p->offset + begin - r->begin));
    }
    return NULL;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* What lies in the range asked for, of one parameter. */
static struct err *read_parameter(struct reading *r, const struct parameter *p)
{
    const struct checkpoint_manifest *m = &r->checkpoint->manifest;
    int64_t begin = larger(0, r->begin - p->offset);
    int64_t end = smaller(p->count, r->begin + r->count - p->offset);
    if (begin >= end)
        return NULL;
    size_t index = (size_t)(checkpoint_manifest_find(m, p->name) - m->parameters);
    size_t low = 0, high = m->n_pieces; /* the first piece of this parameter */
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (m->pieces[middle].parameter < index)
            low = middle + 1;
        else
            high = middle;
    }
    for (size_t i = low; i < m->n_pieces && m->pieces[i].parameter == index; i++) {
        int64_t from = larger(begin, m->pieces[i].begin), to = smaller(end, m->pieces[i].end);
        if (from < to)
            TRY(read_piece(r, p, &m->pieces[i], from, to));
    }
    return NULL;
}

struct err *checkpoint_read(const struct checkpoint *c, const struct parameters *parameters,
                            int64_t begin, int64_t count, float *weights, float *m, float *v)
{
    TRY(check_parameters(c, parameters));
    struct reading r = {
        .checkpoint = c,
        .begin = begin,
        .count = count,
        .out = {weights, m, v},
    };
    for (size_t kind = 0; kind < sizeof r.out / sizeof *r.out; kind++)
        memset(r.out[kind], 0, (size_t)count * sizeof *r.out[kind]);
    struct err *e = NULL;
    for (int i = 0; i < parameters->n && !e; i++)
        e = read_parameter(&r, &parameters->items[i]);
    close_shard(&r);
    return e;
}

/* ---- The newest ---- */

/* *path NULL: damaged, which is logged. */
static struct err *try_step(const char *directory, int64_t step, char **path)
{
    char name[CHECKPOINT_NAME_BYTES];
    struct checkpoint *c = NULL;
    *path = NULL;
    checkpoint_name(step, name);
    if (asprintf(path, "%s/%s", directory, name) < 0) {
        *path = NULL;
        return err_no_memory();
    }
    struct err *e = checkpoint_open(*path, false, &c);
    if (!e && c->manifest.facts.step != step)
        e = err_new(ERR_INVALID, "%s is of step %" PRId64, *path, c->manifest.facts.step);
    checkpoint_close(c);
    if (!e)
        return NULL;
    free(*path);
    *path = NULL;
    if (err_kind(e) != ERR_INVALID && err_kind(e) != ERR_NOT_FOUND)
        return e;
    log_warning("a checkpoint is passed over: %s", err_message(e));
    err_free(e);
    return NULL;
}

struct err *checkpoint_newest(const char *directory, char **path)
{
    int64_t *steps;
    size_t count;
    *path = NULL;
    struct err *e = checkpoint_list(directory, &steps, &count);
    if (e && err_kind(e) == ERR_NOT_FOUND) {
        err_free(e);
        return NULL;
    }
    for (size_t i = count; i-- > 0 && !e && !*path;)
        e = try_step(directory, steps[i], path);
    free(steps);
    return e;
}
