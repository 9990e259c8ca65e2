#include "daemon/worker/data/artifact_writer.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/file.h"

#define TEMPORARY_PREFIX ".preparing-"
#define BUFFER_BYTES ((size_t)1 << 18)

/* One file of the artifact while it grows. */
struct output {
    int fd;
    char *path;
    XXH3_state_t *sum;
    char *buffer;
    size_t used;
    uint64_t bytes;
};

struct artifact_writer {
    const struct tokenizer *tokenizer;
    char *parent;
    char *path; /* NULL before it is made and after it got its name */
    int lock;
    struct output outputs[ARTIFACT_FILES];
    struct tokens tokens; /* scratch */
    uint64_t *unigrams;   /* [vocab] */
    uint64_t n_tokens, n_documents, text_bytes;
    uint64_t document_tokens; /* of the present one */
    uint8_t bits;             /* of `supervised`, not yet written */
};

/* ---- Temporary directories ---- */

/* A directory of plain files. What cannot be removed stays for the next one to try. */
static void remove_directory(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    rmdir(path);
}

/* Removes temporary directories that nobody holds. The caller holds the parent's lock, so no
 * directory is between its creation and its own lock. */
static void sweep(const char *parent)
{
    DIR *dir = opendir(parent);
    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strncmp(entry->d_name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) != 0)
            continue;
        int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd < 0)
            continue;
        char *path;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 &&
            asprintf(&path, "%s/%s", parent, entry->d_name) >= 0) {
            remove_directory(path);
            free(path);
        }
        close(fd);
    }
    closedir(dir);
}

static struct err *make_locked(const char *parent, char **path, int *lock)
{
    char *made;
    if (asprintf(&made, "%s/" TEMPORARY_PREFIX "XXXXXX", parent) < 0)
        return err_no_memory();
    if (!mkdtemp(made)) {
        struct err *e = err_errno(errno, "%s", made);
        free(made);
        return e;
    }
    *path = made;
    *lock = open(made, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0 || flock(*lock, LOCK_EX | LOCK_NB) != 0)
        return err_errno(errno, "%s cannot be locked", made);
    return NULL;
}

/* A fresh directory in `parent`, locked by *lock. On error *path may be set: remove it. */
static struct err *make_temporary(const char *parent, char **path, int *lock)
{
    *path = NULL;
    *lock = -1;
    int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(errno, "%s", parent);
    struct err *e = NULL;
    while (flock(fd, LOCK_EX) != 0 && !e)
        if (errno != EINTR)
            e = err_errno(errno, "%s cannot be locked", parent);
    if (!e) {
        sweep(parent);
        e = make_locked(parent, path, lock);
    }
    close(fd);
    return e;
}

struct err *artifact_remove(const char *datasets_directory, const char *hash)
{
    char *temporary, *path;
    int lock;
    struct err *e = make_temporary(datasets_directory, &temporary, &lock);
    if (!e && asprintf(&path, "%s/%s", datasets_directory, hash) < 0)
        e = err_no_memory();
    if (!e) {
        /* A directory may take the place of an empty one. */
        if (rename(path, temporary) != 0)
            e = err_errno(errno, "%s cannot be removed", path);
        free(path);
    }
    if (temporary)
        remove_directory(temporary);
    if (lock >= 0)
        close(lock);
    free(temporary);
    return e;
}

/* ---- One file ---- */

static struct err *output_open(struct output *o, const char *directory, const char *name)
{
    o->buffer = malloc(BUFFER_BYTES);
    o->sum = XXH3_createState();
    if (!o->buffer || !o->sum || asprintf(&o->path, "%s/%s", directory, name) < 0) {
        o->path = NULL;
        return err_no_memory();
    }
    XXH3_128bits_reset(o->sum);
    o->fd = open(o->path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    return o->fd < 0 ? err_errno(errno, "%s", o->path) : NULL;
}

static struct err *output_flush(struct output *o)
{
    XXH3_128bits_update(o->sum, o->buffer, o->used);
    TRY(file_write_all(o->fd, o->path, o->buffer, o->used));
    o->bytes += o->used;
    o->used = 0;
    return NULL;
}

static struct err *output_put(struct output *o, const void *bytes, size_t n)
{
    const char *from = bytes;
    while (n > 0) {
        if (o->used == BUFFER_BYTES)
            TRY(output_flush(o));
        size_t part = n < BUFFER_BYTES - o->used ? n : BUFFER_BYTES - o->used;
        memcpy(o->buffer + o->used, from, part);
        o->used += part;
        from += part;
        n -= part;
    }
    return NULL;
}

static struct err *output_finish(struct output *o)
{
    TRY(output_flush(o));
    int fd = o->fd;
    o->fd = -1;
    struct err *e = fsync(fd) == 0 ? NULL : err_errno(errno, "%s", o->path);
    if (close(fd) != 0 && !e)
        e = err_errno(errno, "%s", o->path);
    return e;
}

static void output_close(struct output *o)
{
    if (o->fd >= 0)
        close(o->fd);
    XXH3_freeState(o->sum);
    free(o->buffer);
    free(o->path);
}

/* ---- Documents ---- */

/* The scratch tokens go to the files. */
static struct err *put_tokens(struct artifact_writer *w)
{
    for (size_t i = 0; i < w->tokens.count; i++) {
        uint32_t id = w->tokens.ids[i];
        if (id >= w->tokenizer->vocab)
            return err_new(ERR_INTERNAL, "the tokenizer %s made token %" PRIu32, w->tokenizer->name,
                           id);
        w->unigrams[id]++;
        w->bits |= (uint8_t)(1 << w->n_tokens % 8); /* all of a plain text is supervised */
        if (++w->n_tokens % 8 == 0) {
            TRY(output_put(&w->outputs[ARTIFACT_SUPERVISED], &w->bits, 1));
            w->bits = 0;
        }
    }
    w->document_tokens += w->tokens.count;
    return output_put(&w->outputs[ARTIFACT_TOKENS], w->tokens.ids,
                      w->tokens.count * sizeof *w->tokens.ids);
}

struct err *artifact_writer_text(struct artifact_writer *w, const char *text, size_t bytes)
{
    if (w->document_tokens == 0)
        TRY(output_put(&w->outputs[ARTIFACT_DOCUMENTS], &w->n_tokens, sizeof w->n_tokens));
    w->tokens.count = 0;
    TRY(w->tokenizer->encode(w->tokenizer, text, bytes, &w->tokens));
    w->text_bytes += bytes;
    return put_tokens(w);
}

struct err *artifact_writer_end_document(struct artifact_writer *w)
{
    w->tokens.count = 0;
    TRY(tokens_reserve(&w->tokens, 1));
    w->tokens.ids[w->tokens.count++] = w->tokenizer->end_of_document;
    TRY(put_tokens(w));
    w->n_documents++;
    w->document_tokens = 0;
    return NULL;
}

uint64_t artifact_writer_documents(const struct artifact_writer *w)
{
    return w->n_documents;
}

/* ---- The whole ---- */

static struct err *open_outputs(struct artifact_writer *w, const char *parent)
{
    w->parent = strdup(parent);
    w->unigrams = calloc(w->tokenizer->vocab, sizeof *w->unigrams);
    if (!w->parent || !w->unigrams)
        return err_no_memory();
    TRY(make_temporary(parent, &w->path, &w->lock));
    for (int i = 0; i < ARTIFACT_FILES; i++)
        TRY(output_open(&w->outputs[i], w->path, artifact_file_names[i]));
    return NULL;
}

struct err *artifact_writer_create(const char *datasets_directory,
                                   const struct tokenizer *tokenizer, struct artifact_writer **out)
{
    *out = NULL;
    struct artifact_writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_no_memory();
    w->tokenizer = tokenizer;
    w->lock = -1;
    for (int i = 0; i < ARTIFACT_FILES; i++)
        w->outputs[i].fd = -1;
    struct err *e = open_outputs(w, datasets_directory);
    if (e) {
        artifact_writer_destroy(w);
        return e;
    }
    *out = w;
    return NULL;
}

void artifact_writer_destroy(struct artifact_writer *w)
{
    if (!w)
        return;
    for (int i = 0; i < ARTIFACT_FILES; i++)
        output_close(&w->outputs[i]);
    if (w->path)
        remove_directory(w->path);
    if (w->lock >= 0)
        close(w->lock);
    tokens_free(&w->tokens);
    free(w->unigrams);
    free(w->path);
    free(w->parent);
    free(w);
}

static bool add_numbers(const struct artifact_writer *w, const char *hash, cJSON *json)
{
    const struct tokenizer *t = w->tokenizer;
    cJSON *tokenizer;
    return cJSON_AddNumberToObject(json, "version", ARTIFACT_VERSION) &&
           cJSON_AddStringToObject(json, "hash", hash) &&
           cJSON_AddNumberToObject(json, "documents", (double)w->n_documents) &&
           cJSON_AddNumberToObject(json, "tokens", (double)w->n_tokens) &&
           cJSON_AddNumberToObject(json, "supervised_tokens", (double)w->n_tokens) &&
           cJSON_AddNumberToObject(json, "bytes", (double)w->text_bytes) &&
           cJSON_AddNumberToObject(json, "unigram_entropy",
                                   artifact_entropy(w->unigrams, t->vocab)) &&
           (tokenizer = cJSON_AddObjectToObject(json, "tokenizer")) &&
           cJSON_AddStringToObject(tokenizer, "name", t->name) &&
           cJSON_AddStringToObject(tokenizer, "identity", t->identity) &&
           cJSON_AddNumberToObject(tokenizer, "vocab", t->vocab) &&
           cJSON_AddNumberToObject(tokenizer, "end_of_document", t->end_of_document) &&
           cJSON_AddNumberToObject(tokenizer, "mask", t->mask) &&
           cJSON_AddNumberToObject(tokenizer, "pad", t->pad);
}

static bool add_sums(const struct artifact_writer *w, cJSON *json)
{
    cJSON *files = cJSON_AddObjectToObject(json, "files");
    for (int i = 0; files && i < ARTIFACT_FILES; i++) {
        char sum[ARTIFACT_HASH_CHARS + 1];
        artifact_hex(XXH3_128bits_digest(w->outputs[i].sum), sum);
        cJSON *file = cJSON_AddObjectToObject(files, artifact_file_names[i]);
        if (!file || !cJSON_AddNumberToObject(file, "bytes", (double)w->outputs[i].bytes) ||
            !cJSON_AddStringToObject(file, "xxh3", sum))
            return false;
    }
    return files != NULL;
}

static struct err *write_manifest(const struct artifact_writer *w, const char *hash, cJSON *about)
{
    char *path;
    if (asprintf(&path, "%s/" ARTIFACT_MANIFEST, w->path) < 0)
        return err_no_memory();
    char *text = add_numbers(w, hash, about) && add_sums(w, about) ? cJSON_Print(about) : NULL;
    /* Replacing syncs the directory too. */
    struct err *e = text ? file_replace(path, text, strlen(text)) : err_no_memory();
    cJSON_free(text);
    free(path);
    return e;
}

/* The directory gets its name, unless another process has given it to its own meanwhile. */
static struct err *take_name(struct artifact_writer *w, const char *hash)
{
    char *path;
    if (asprintf(&path, "%s/%s", w->parent, hash) < 0)
        return err_no_memory();
    struct err *e = NULL;
    /* mkdtemp made it for us alone; the daemon, which removes it one day, and other jobs' workers
     * may be other users of our group. */
    mode_t mask = umask(0077);
    umask(mask);
    if (chmod(w->path, 0777 & ~mask) != 0)
        e = err_errno(errno, "%s", w->path);
    else if (rename(w->path, path) == 0) {
        free(w->path);
        w->path = NULL;
        e = file_sync_directory(w->parent);
    } else if (errno != EEXIST && errno != ENOTEMPTY) {
        e = err_errno(errno, "%s cannot be renamed to %s", w->path, path);
    }
    free(path);
    return e;
}

struct err *artifact_writer_finish(struct artifact_writer *w, const char *hash, cJSON *about)
{
    if (w->n_tokens % 8 != 0)
        TRY(output_put(&w->outputs[ARTIFACT_SUPERVISED], &w->bits, 1));
    TRY(output_put(&w->outputs[ARTIFACT_DOCUMENTS], &w->n_tokens, sizeof w->n_tokens));
    TRY(output_put(&w->outputs[ARTIFACT_UNIGRAMS], w->unigrams,
                   w->tokenizer->vocab * sizeof *w->unigrams));
    for (int i = 0; i < ARTIFACT_FILES; i++)
        TRY(output_finish(&w->outputs[i]));
    TRY(write_manifest(w, hash, about));
    return take_name(w, hash);
}
