#include "store/weights.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/json.h"

#define SINGLE "model.safetensors"
#define INDEX "model.safetensors.index.json"
#define ENDING ".safetensors"
#define INDEX_BYTES ((size_t)16 << 20)
#define MAX_SHARDS 256
/* Of all shards together: a model of a thousand layers has a tenth of it. */
#define HEADER_BYTES ((size_t)64 << 20)

struct weights {
    char *directory;
    char *path; /* of the single file or the index */
    const struct file_roots *roots;
    struct safetensors *files[MAX_SHARDS];
    size_t n_files;
    size_t header_bytes;
    struct weights_tensor *tensors; /* by name */
    size_t n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct weights_tensor *)a)->tensor->name,
                  ((const struct weights_tensor *)b)->tensor->name);
}

static struct err *join(const char *directory, const char *name, char **out)
{
    return asprintf(out, "%s/%s", directory, name) < 0 ? err_no_memory() : NULL;
}

static struct err *open_file(struct weights *w, const char *path)
{
    TRY(file_expect_within(path, w->roots));
    TRY(safetensors_open_within(path, HEADER_BYTES - w->header_bytes, &w->files[w->n_files]));
    w->header_bytes += safetensors_header_bytes(w->files[w->n_files]);
    w->n_files++;
    return NULL;
}

static struct err *list_tensors(struct weights *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n_files; i++)
        n += safetensors_count(w->files[i]);
    w->tensors = calloc(n + 1, sizeof *w->tensors);
    if (!w->tensors)
        return err_no_memory();
    for (size_t i = 0; i < w->n_files; i++)
        for (size_t k = 0; k < safetensors_count(w->files[i]); k++)
            w->tensors[w->n++] =
                (struct weights_tensor){safetensors_at(w->files[i], k), w->files[i]};
    qsort(w->tensors, w->n, sizeof *w->tensors, by_name);
    for (size_t i = 1; i < w->n; i++)
        if (by_name(&w->tensors[i - 1], &w->tensors[i]) == 0)
            return err_new(ERR_INVALID, "tensor %.200s lies in %s and in %s: which one counts?",
                           w->tensors[i].tensor->name, safetensors_path(w->tensors[i - 1].file),
                           safetensors_path(w->tensors[i].file));
    return NULL;
}

/* ---- The index ---- */

static bool is_shard_name(const char *name)
{
    size_t n = strlen(name), m = strlen(ENDING);
    return n > m && strcmp(name + n - m, ENDING) == 0 && !strchr(name, '/') && name[0] != '.';
}

static const char *name_in(const struct safetensors *file)
{
    return strrchr(safetensors_path(file), '/') + 1;
}

static struct err *open_shard(struct weights *w, const char *name)
{
    for (size_t i = 0; i < w->n_files; i++)
        if (strcmp(name_in(w->files[i]), name) == 0)
            return NULL;
    if (w->n_files == MAX_SHARDS)
        return err_new(ERR_INVALID, "%s names more than %d files", w->path, MAX_SHARDS);
    char *path;
    TRY(join(w->directory, name, &path));
    struct err *e = open_file(w, path);
    free(path);
    return e && err_kind(e) == ERR_NOT_FOUND
               ? err_wrap(e, "%s names a shard that is missing", w->path)
               : e;
}

static struct err *open_shards(struct weights *w, const cJSON *map)
{
    if (!cJSON_IsObject(map) || !map->child)
        return err_new(ERR_INVALID,
                       "%s: weight_map must be an object that says of each tensor which file it "
                       "lies in",
                       w->path);
    for (const cJSON *item = map->child; item; item = item->next) {
        if (!cJSON_IsString(item) || !is_shard_name(item->valuestring))
            return err_new(ERR_INVALID,
                           "%s: weight_map/%.200s is %s%.200s%s, but must be the name of a "
                           "%s file in the same directory",
                           w->path, item->string, cJSON_IsString(item) ? "\"" : "",
                           cJSON_IsString(item) ? item->valuestring : "no string",
                           cJSON_IsString(item) ? "\"" : "", ENDING);
        TRY(open_shard(w, item->valuestring));
    }
    return NULL;
}

/* Every tensor of the index is where it says. A shard may hold more: who asks for tensors by name
 * finds them there. */
static struct err *check_index(const struct weights *w, const cJSON *map)
{
    for (const cJSON *item = map->child; item; item = item->next) {
        const struct weights_tensor *found = weights_find(w, item->string);
        if (!found)
            return err_new(ERR_INVALID,
                           "%s: tensor %.200s should lie in %s, which does not have it", w->path,
                           item->string, item->valuestring);
        if (strcmp(name_in(found->file), item->valuestring) != 0)
            return err_new(ERR_INVALID, "%s: tensor %.200s should lie in %s, but lies in %s",
                           w->path, item->string, item->valuestring, name_in(found->file));
    }
    return NULL;
}

static struct err *open_index(struct weights *w)
{
    char *text;
    size_t bytes;
    cJSON *json;
    TRY(file_expect_within(w->path, w->roots));
    TRY(file_read(w->path, INDEX_BYTES, &text, &bytes));
    struct err *e = json_parse(text, bytes, &json);
    free(text);
    if (e)
        return err_wrap(e, "%s", w->path);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map");
    e = open_shards(w, map);
    if (!e)
        e = list_tensors(w);
    if (!e)
        e = check_index(w, map);
    cJSON_Delete(json);
    return e;
}

/* ---- The directory ---- */

/* A link that leads nowhere is there: opening it says what is wrong. */
static bool is_there(const char *directory, const char *name)
{
    char *path = NULL;
    bool there = asprintf(&path, "%s/%s", directory, name) >= 0 &&
                 faccessat(AT_FDCWD, path, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    free(path);
    return there;
}

static struct err *none(const char *directory)
{
    bool pickled = is_there(directory, "pytorch_model.bin") ||
                   is_there(directory, "pytorch_model.bin.index.json");
    return err_new(ERR_NOT_FOUND, "%s has no %s and no %s%s", directory, SINGLE, INDEX,
                   pickled ? "; its pytorch_model.bin is not read: save it as safetensors" : "");
}

static struct err *open_directory(struct weights *w)
{
    bool single = is_there(w->directory, SINGLE);
    if (!single && !is_there(w->directory, INDEX))
        return none(w->directory);
    TRY(join(w->directory, single ? SINGLE : INDEX, &w->path));
    if (!single)
        return open_index(w);
    TRY(open_file(w, w->path));
    return list_tensors(w);
}

struct err *weights_open(const char *directory, const struct file_roots *roots,
                         struct weights **out)
{
    *out = NULL;
    struct weights *w = calloc(1, sizeof *w);
    if (!w)
        return err_no_memory();
    w->roots = roots;
    w->directory = strdup(directory);
    struct err *e = w->directory ? open_directory(w) : err_no_memory();
    if (e)
        weights_close(w);
    else
        *out = w;
    return e;
}

void weights_close(struct weights *w)
{
    if (!w)
        return;
    for (size_t i = 0; i < w->n_files; i++)
        safetensors_close(w->files[i]);
    free(w->tensors);
    free(w->path);
    free(w->directory);
    free(w);
}

const struct weights_tensor *weights_tensors(const struct weights *w, size_t *n)
{
    *n = w->n;
    return w->tensors;
}

const struct weights_tensor *weights_find(const struct weights *w, const char *name)
{
    struct safetensor named = {.name = name};
    struct weights_tensor key = {.tensor = &named};
    return bsearch(&key, w->tensors, w->n, sizeof key, by_name);
}

const char *weights_path(const struct weights *w)
{
    return w->path;
}
