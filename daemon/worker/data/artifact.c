#include "daemon/worker/data/artifact.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/file.h"
#include "daemon/base/json.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are mapped, not swapped");

#define MAX_MANIFEST_BYTES ((size_t)1 << 28)
#define MAX_COUNT 9007199254740992.0 /* 2^53: what JSON numbers hold */
#define MAX_VOCAB ((uint64_t)1 << 31)

const char *const artifact_file_names[ARTIFACT_FILES] = {
    [ARTIFACT_TOKENS] = "tokens",
    [ARTIFACT_SUPERVISED] = "supervised",
    [ARTIFACT_DOCUMENTS] = "documents",
    [ARTIFACT_UNIGRAMS] = "unigrams",
};

double artifact_entropy(const uint64_t *counts, size_t n)
{
    double total = 0, entropy = 0;
    for (size_t i = 0; i < n; i++)
        total += (double)counts[i];
    for (size_t i = 0; i < n; i++) {
        double p = (double)counts[i] / total;
        if (counts[i] > 0)
            entropy -= p * log(p);
    }
    return entropy;
}

void artifact_hex(XXH128_hash_t hash, char out[static ARTIFACT_HASH_CHARS + 1])
{
    snprintf(out, ARTIFACT_HASH_CHARS + 1, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64,
             (uint64_t)hash.low64);
}

/* ---- The manifest ---- */

static struct err *damaged(const struct artifact *a, const char *file, const char *what)
{
    return err_new(ERR_INVALID,
                   "%s/%s %s: the dataset is damaged and must be removed and prepared again",
                   a->path, file, what);
}

static struct err *read_count(const struct artifact *a, const cJSON *object, const char *key,
                              uint64_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    char what[96];
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble > MAX_COUNT ||
        item->valuedouble != floor(item->valuedouble)) {
        snprintf(what, sizeof what, "has no count \"%s\"", key);
        return damaged(a, ARTIFACT_MANIFEST, what);
    }
    *out = (uint64_t)item->valuedouble;
    return NULL;
}

static struct err *read_counts(struct artifact *a, const cJSON *json)
{
    uint64_t version, vocab, pad;
    const cJSON *tokenizer = cJSON_GetObjectItemCaseSensitive(json, "tokenizer");
    TRY(read_count(a, json, "version", &version));
    if (version != ARTIFACT_VERSION)
        return err_new(ERR_INVALID,
                       "%s/" ARTIFACT_MANIFEST " is of version %" PRIu64 " but must be of %d",
                       a->path, version, ARTIFACT_VERSION);
    TRY(read_count(a, json, "tokens", &a->n_tokens));
    TRY(read_count(a, json, "supervised_tokens", &a->n_supervised));
    TRY(read_count(a, json, "documents", &a->n_documents));
    TRY(read_count(a, json, "bytes", &a->text_bytes));
    TRY(read_count(a, json, "skipped_empty", &a->skipped_empty));
    TRY(read_count(a, tokenizer, "vocab", &vocab));
    TRY(read_count(a, tokenizer, "pad", &pad));
    const cJSON *entropy = cJSON_GetObjectItemCaseSensitive(json, "unigram_entropy");
    if (vocab > MAX_VOCAB || pad >= vocab || !cJSON_IsNumber(entropy))
        return damaged(a, ARTIFACT_MANIFEST, "has an impossible vocabulary or entropy");
    a->vocab = (uint32_t)vocab;
    a->pad = (uint32_t)pad;
    a->unigram_entropy = entropy->valuedouble;
    return NULL;
}

/* ---- The files ---- */

static uint64_t expected_bytes(const struct artifact *a, int file)
{
    switch (file) {
    case ARTIFACT_TOKENS:
        return a->n_tokens * sizeof *a->tokens;
    case ARTIFACT_SUPERVISED:
        return (a->n_tokens + 7) / 8;
    case ARTIFACT_DOCUMENTS:
        return (a->n_documents + 1) * sizeof *a->documents;
    default:
        return a->vocab * sizeof *a->unigrams;
    }
}

static struct err *map_open(struct artifact *a, int file, int fd)
{
    const char *name = artifact_file_names[file];
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_errno(errno, "%s/%s", a->path, name);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != expected_bytes(a, file)) {
        char what[96];
        snprintf(what, sizeof what, "has %lld bytes instead of the manifest's %" PRIu64,
                 (long long)st.st_size, expected_bytes(a, file));
        return damaged(a, name, what);
    }
    if (st.st_size == 0)
        return NULL;
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return err_errno(errno, "%s/%s cannot be mapped", a->path, name);
    a->files[file].map = map;
    a->files[file].bytes = (size_t)st.st_size;
    return NULL;
}

static struct err *map_file(struct artifact *a, int file)
{
    char *path;
    if (asprintf(&path, "%s/%s", a->path, artifact_file_names[file]) < 0)
        return err_no_memory();
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), reason = errno;
    free(path);
    if (fd < 0 && reason == ENOENT)
        return damaged(a, artifact_file_names[file], "is missing");
    if (fd < 0)
        return err_errno(reason, "%s/%s", a->path, artifact_file_names[file]);
    struct err *e = map_open(a, file, fd);
    close(fd);
    return e;
}

static struct err *check_sum(const struct artifact *a, const cJSON *files, int file)
{
    const char *name = artifact_file_names[file];
    const cJSON *entry = cJSON_GetObjectItemCaseSensitive(files, name);
    const char *sum = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(entry, "xxh3"));
    char found[ARTIFACT_HASH_CHARS + 1];
    const void *bytes = a->files[file].map ? a->files[file].map : "";
    artifact_hex(XXH3_128bits(bytes, a->files[file].bytes), found);
    if (!sum || strcmp(sum, found) != 0)
        return damaged(a, name, "does not have the manifest's checksum");
    return NULL;
}

static struct err *check_documents(const struct artifact *a)
{
    if (a->documents[0] != 0 || a->documents[a->n_documents] != a->n_tokens)
        return damaged(a, "documents", "does not span the tokens");
    for (uint64_t i = 0; i < a->n_documents; i++)
        if (a->documents[i] >= a->documents[i + 1])
            return damaged(a, "documents", "does not rise");
    return NULL;
}

static struct err *read_files(struct artifact *a, const cJSON *json, bool verify)
{
    TRY(read_counts(a, json));
    for (int i = 0; i < ARTIFACT_FILES; i++)
        TRY(map_file(a, i));
    a->tokens = a->files[ARTIFACT_TOKENS].map;
    a->supervised = a->files[ARTIFACT_SUPERVISED].map;
    a->documents = a->files[ARTIFACT_DOCUMENTS].map;
    a->unigrams = a->files[ARTIFACT_UNIGRAMS].map;
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(json, "files");
    for (int i = 0; i < ARTIFACT_FILES && verify; i++)
        TRY(check_sum(a, files, i));
    return check_documents(a);
}

static struct err *read_manifest(const struct artifact *a, cJSON **json)
{
    char *path, *text = NULL;
    size_t length;
    if (access(a->path, F_OK) != 0 && errno == ENOENT)
        return err_new(ERR_NOT_FOUND, "%s does not exist", a->path);
    if (asprintf(&path, "%s/" ARTIFACT_MANIFEST, a->path) < 0)
        return err_no_memory();
    struct err *e = file_read(path, MAX_MANIFEST_BYTES, &text, &length);
    if (e && err_kind(e) == ERR_NOT_FOUND) {
        err_free(e);
        e = damaged(a, ARTIFACT_MANIFEST, "is missing");
    } else if (!e) {
        e = json_parse(text, length, json);
        if (e)
            e = err_wrap(e, "%s", path);
    }
    free(text);
    free(path);
    return e;
}

struct err *artifact_open(const char *path, bool verify, struct artifact *a)
{
    cJSON *json = NULL;
    *a = (struct artifact){.path = strdup(path)};
    if (!a->path)
        return err_no_memory();
    struct err *e = read_manifest(a, &json);
    if (!e)
        e = read_files(a, json, verify);
    cJSON_Delete(json);
    if (e)
        artifact_close(a);
    return e;
}

void artifact_close(struct artifact *a)
{
    for (int i = 0; i < ARTIFACT_FILES; i++)
        if (a->files[i].map)
            munmap((void *)a->files[i].map, a->files[i].bytes);
    free(a->path);
    *a = (struct artifact){0};
}
