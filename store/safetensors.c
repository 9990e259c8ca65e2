#include "store/safetensors.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "store/half.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files are mapped, not swapped");

#define LENGTH_BYTES 8
#define MAX_HEADER_BYTES 100000000 /* the format's own limit */
#define MAX_INTEGER 9007199254740992.0
#define METADATA_KEY "__metadata__"
#define READ_BYTES ((size_t)1 << 18)

struct safetensors {
    char *path;
    int fd;
    const char *map;
    size_t map_bytes;
    size_t data_begin; /* of the tensors' bytes, in the file */
    cJSON *header;     /* owns names and metadata */
    size_t n;
    struct safetensor *tensors;
};

static const struct {
    const char *name;
    size_t bytes;
} dtypes[] = {
    [SAFETENSORS_F64] = {"F64", 8},         [SAFETENSORS_I64] = {"I64", 8},
    [SAFETENSORS_U64] = {"U64", 8},         [SAFETENSORS_F32] = {"F32", 4},
    [SAFETENSORS_I32] = {"I32", 4},         [SAFETENSORS_U32] = {"U32", 4},
    [SAFETENSORS_F16] = {"F16", 2},         [SAFETENSORS_BF16] = {"BF16", 2},
    [SAFETENSORS_I16] = {"I16", 2},         [SAFETENSORS_U16] = {"U16", 2},
    [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 1}, [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 1},
    [SAFETENSORS_I8] = {"I8", 1},           [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_BOOL] = {"BOOL", 1},
};

size_t safetensors_dtype_bytes(enum safetensors_dtype dtype)
{
    return dtypes[dtype].bytes;
}

const char *safetensors_dtype_name(enum safetensors_dtype dtype)
{
    return dtypes[dtype].name;
}

/* Fills elements and bytes from shape and dtype; false where they exceed 63 bits. */
static bool measure(struct safetensor *t)
{
    int64_t elements = 1, bytes;
    /* Zeros first: [2^62, 2^62, 0] is empty, not too large. */
    for (int i = 0; i < t->dims; i++)
        if (t->shape[i] == 0)
            elements = 0;
    for (int i = 0; i < t->dims && elements > 0; i++)
        if (__builtin_mul_overflow(elements, t->shape[i], &elements))
            return false;
    if (__builtin_mul_overflow(elements, (int64_t)dtypes[t->dtype].bytes, &bytes))
        return false;
    t->elements = elements;
    t->bytes = (size_t)bytes;
    return true;
}

/* ---- The header ---- */

static struct err *bad_tensor(const struct safetensors *s, const char *name, const char *what)
{
    return err_new(ERR_INVALID, "%s: tensor %.200s: %s", s->path, name, what);
}

static bool integer(const cJSON *item, int64_t *out)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0) || item->valuedouble > MAX_INTEGER ||
        item->valuedouble != floor(item->valuedouble))
        return false;
    *out = (int64_t)item->valuedouble;
    return true;
}

static struct err *read_dtype(const struct safetensors *s, const cJSON *entry,
                              struct safetensor *out)
{
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    if (!cJSON_IsString(dtype))
        return bad_tensor(s, entry->string, "dtype is missing or not a string");
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].name, dtype->valuestring) == 0) {
            out->dtype = (enum safetensors_dtype)i;
            return NULL;
        }
    }
    return err_new(ERR_INVALID, "%s: tensor %.200s: dtype %.32s is not known", s->path,
                   entry->string, dtype->valuestring);
}

static struct err *read_shape(const struct safetensors *s, const cJSON *entry,
                              struct safetensor *out)
{
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    if (!cJSON_IsArray(shape))
        return bad_tensor(s, entry->string, "shape is missing or not an array");
    for (const cJSON *item = shape->child; item; item = item->next) {
        if (out->dims == SAFETENSORS_MAX_DIMS)
            return bad_tensor(s, entry->string, "shape has more than 8 dimensions");
        if (!integer(item, &out->shape[out->dims++]))
            return bad_tensor(s, entry->string, "shape holds something else than an integer");
    }
    if (!measure(out))
        return bad_tensor(s, entry->string, "shape is too large");
    return NULL;
}

static struct err *read_entry(const struct safetensors *s, const cJSON *entry,
                              struct safetensor *out)
{
    *out = (struct safetensor){.name = entry->string};
    if (!cJSON_IsObject(entry))
        return bad_tensor(s, entry->string, "its header entry is not an object");
    TRY(read_dtype(s, entry, out));
    TRY(read_shape(s, entry, out));
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    int64_t begin, end;
    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2 ||
        !integer(offsets->child, &begin) || !integer(offsets->child->next, &end) || begin > end)
        return bad_tensor(s, entry->string, "data_offsets is not an array of two rising integers");
    size_t data_bytes = s->map_bytes - s->data_begin;
    if ((uint64_t)end > data_bytes)
        return err_new(ERR_INVALID,
                       "%s: tensor %.200s ends at byte %" PRId64
                       " of the data, but the file holds %zu: it is cut off",
                       s->path, entry->string, end, data_bytes);
    if ((uint64_t)(end - begin) != out->bytes)
        return err_new(ERR_INVALID,
                       "%s: tensor %.200s: %" PRId64 " elements of %s are %zu bytes, but "
                       "data_offsets span %" PRId64,
                       s->path, entry->string, out->elements, dtypes[out->dtype].name, out->bytes,
                       end - begin);
    out->data = s->map + s->data_begin + begin;
    return NULL;
}

static int by_position(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones before what follows */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

static struct err *check_layout(const struct safetensors *s)
{
    const char *expected = s->map + s->data_begin, *end = s->map + s->map_bytes;
    for (size_t i = 0; i < s->n; i++) {
        const struct safetensor *t = &s->tensors[i];
        if ((const char *)t->data != expected)
            return bad_tensor(s, t->name,
                              (const char *)t->data < expected
                                  ? "it overlaps the tensor before it"
                                  : "there is a hole between it and the tensor before it");
        expected += t->bytes;
    }
    if (expected != end)
        return err_new(ERR_INVALID, "%s has %td bytes behind its last tensor", s->path,
                       end - expected);
    return NULL;
}

static struct err *check_metadata(const struct safetensors *s, const cJSON *metadata)
{
    if (!cJSON_IsObject(metadata))
        return err_new(ERR_INVALID, "%s: %s is not an object", s->path, METADATA_KEY);
    for (const cJSON *item = metadata->child; item; item = item->next)
        if (!cJSON_IsString(item))
            return err_new(ERR_INVALID, "%s: %s/%.200s is not a string", s->path, METADATA_KEY,
                           item->string);
    return NULL;
}

static struct err *read_header(struct safetensors *s)
{
    bool has_metadata = false;
    size_t n = 0;
    for (const cJSON *entry = s->header->child; entry; entry = entry->next)
        n++;
    s->tensors = calloc(n ? n : 1, sizeof *s->tensors);
    if (!s->tensors)
        return err_no_memory();
    for (const cJSON *entry = s->header->child; entry; entry = entry->next) {
        if (strcmp(entry->string, METADATA_KEY) != 0) {
            TRY(read_entry(s, entry, &s->tensors[s->n]));
            s->n++;
            continue;
        }
        if (has_metadata)
            return err_new(ERR_INVALID, "%s: %s stands twice in the header", s->path, METADATA_KEY);
        has_metadata = true;
        TRY(check_metadata(s, entry));
    }
    if (s->n > 0)
        qsort(s->tensors, s->n, sizeof *s->tensors, by_position);
    TRY(check_layout(s));
    if (s->n > 0)
        qsort(s->tensors, s->n, sizeof *s->tensors, by_name);
    for (size_t i = 1; i < s->n; i++)
        if (strcmp(s->tensors[i - 1].name, s->tensors[i].name) == 0)
            return bad_tensor(s, s->tensors[i].name, "it stands twice in the header");
    return NULL;
}

/* ---- Opening ---- */

static struct err *map_file(struct safetensors *s)
{
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (s->fd < 0 && errno == ENOENT)
        return err_new(ERR_NOT_FOUND, "%s does not exist", s->path);
    struct stat st;
    if (s->fd < 0 || fstat(s->fd, &st) != 0)
        return err_errno(errno, "%s", s->path);
    if (!S_ISREG(st.st_mode))
        return err_new(ERR_INVALID, "%s is not a regular file", s->path);
    if (st.st_size < LENGTH_BYTES)
        return err_new(ERR_INVALID,
                       "%s has %lld bytes: a safetensors file begins with 8 bytes that hold its "
                       "header's length",
                       s->path, (long long)st.st_size);
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, s->fd, 0);
    if (map == MAP_FAILED)
        return err_errno(errno, "%s cannot be mapped", s->path);
    s->map = map;
    s->map_bytes = (size_t)st.st_size;
    return NULL;
}

static struct err *open_file(struct safetensors *s, size_t max_header_bytes)
{
    TRY(map_file(s));
    uint64_t header_bytes;
    memcpy(&header_bytes, s->map, sizeof header_bytes);
    if (header_bytes > MAX_HEADER_BYTES)
        return err_new(ERR_INVALID,
                       "%s claims a header of %" PRIu64 " bytes, more than the %d that "
                       "safetensors allows: it is another format or damaged",
                       s->path, header_bytes, MAX_HEADER_BYTES);
    if (header_bytes > s->map_bytes - LENGTH_BYTES)
        return err_new(ERR_INVALID,
                       "%s claims a header of %" PRIu64 " bytes but ends after %zu: it is cut off",
                       s->path, header_bytes, s->map_bytes - LENGTH_BYTES);
    if (header_bytes > max_header_bytes)
        return err_new(ERR_INVALID, "%s has a header of %" PRIu64 " bytes: at most %zu are read",
                       s->path, header_bytes, max_header_bytes);
    s->data_begin = LENGTH_BYTES + (size_t)header_bytes;
    const char *text = s->map + LENGTH_BYTES;
    if (header_bytes == 0 || text[0] != '{')
        return err_new(ERR_INVALID, "%s: the header does not begin with '{'", s->path);
    struct err *e = json_parse(text, (size_t)header_bytes, &s->header);
    if (e)
        return err_wrap(e, "%s: the header is not readable", s->path);
    return read_header(s);
}

struct err *safetensors_open_within(const char *path, size_t max_header_bytes,
                                    struct safetensors **out)
{
    *out = NULL;
    struct safetensors *s = calloc(1, sizeof *s);
    if (!s)
        return err_no_memory();
    s->fd = -1;
    s->path = strdup(path);
    struct err *e = s->path ? open_file(s, max_header_bytes) : err_no_memory();
    if (e) {
        safetensors_close(s);
        return e;
    }
    *out = s;
    return NULL;
}

struct err *safetensors_open(const char *path, struct safetensors **out)
{
    return safetensors_open_within(path, MAX_HEADER_BYTES, out);
}

void safetensors_close(struct safetensors *s)
{
    if (!s)
        return;
    if (s->map)
        munmap((void *)s->map, s->map_bytes);
    if (s->fd >= 0)
        close(s->fd);
    cJSON_Delete(s->header);
    free(s->tensors);
    free(s->path);
    free(s);
}

const char *safetensors_path(const struct safetensors *s)
{
    return s->path;
}

size_t safetensors_header_bytes(const struct safetensors *s)
{
    return s->data_begin - LENGTH_BYTES;
}

size_t safetensors_count(const struct safetensors *s)
{
    return s->n;
}

const struct safetensor *safetensors_at(const struct safetensors *s, size_t index)
{
    return index < s->n ? &s->tensors[index] : NULL;
}

const struct safetensor *safetensors_find(const struct safetensors *s, const char *name)
{
    struct safetensor key = {.name = name};
    return s->n ? bsearch(&key, s->tensors, s->n, sizeof key, by_name) : NULL;
}

const char *safetensors_metadata(const struct safetensors *s, const char *key)
{
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(s->header, METADATA_KEY);
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(metadata, key));
}

/* ---- Values ---- */

static void to_f32(enum safetensors_dtype dtype, const void *in, size_t n, float *out)
{
    if (dtype == SAFETENSORS_F32) {
        memcpy(out, in, n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, (const char *)in + 2 * i, sizeof half);
        out[i] = dtype == SAFETENSORS_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
    }
}

static struct err *read_at(const struct safetensors *s, const struct safetensor *t, void *out,
                           size_t bytes, size_t position)
{
    for (size_t used = 0; used < bytes;) {
        ssize_t n = pread(s->fd, (char *)out + used, bytes - used, (off_t)(position + used));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(errno, "%s: tensor %.200s", s->path, t->name);
        if (n == 0)
            return err_new(ERR_IO, "%s became shorter while tensor %.200s was read", s->path,
                           t->name);
        used += (size_t)n;
    }
    return NULL;
}

struct err *safetensors_read_f32(const struct safetensors *s, const struct safetensor *t,
                                 int64_t begin, int64_t count, float *out)
{
    if (t->dtype != SAFETENSORS_F32 && t->dtype != SAFETENSORS_BF16 && t->dtype != SAFETENSORS_F16)
        return err_new(ERR_INVALID, "%s: tensor %.200s is %s but must be F32, BF16 or F16", s->path,
                       t->name, dtypes[t->dtype].name);
    if (begin < 0 || count < 0 || begin > t->elements - count)
        return err_new(ERR_INTERNAL,
                       "%s: tensor %.200s has %" PRId64 " elements, not %" PRId64 " from %" PRId64,
                       s->path, t->name, t->elements, count, begin);
    size_t width = dtypes[t->dtype].bytes;
    size_t position = (size_t)((const char *)t->data - s->map) + (size_t)begin * width;
    if (t->dtype == SAFETENSORS_F32)
        return read_at(s, t, out, (size_t)count * width, position);
    char *buffer = malloc(READ_BYTES);
    if (!buffer)
        return err_no_memory();
    struct err *e = NULL;
    for (size_t left = (size_t)count; left > 0 && !e;) {
        size_t n = left < READ_BYTES / width ? left : READ_BYTES / width;
        e = read_at(s, t, buffer, n * width, position);
        if (!e)
            to_f32(t->dtype, buffer, n, out);
        out += n;
        left -= n;
        position += n * width;
    }
    free(buffer);
    return e;
}

/* ---- Writing ---- */

/* By falling element size, then name: each tensor is aligned to its elements. */
static int by_width(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    size_t p = dtypes[x->dtype].bytes, q = dtypes[y->dtype].bytes;
    return p != q ? (p < q ? 1 : -1) : strcmp(x->name, y->name);
}

static int by_key(const void *a, const void *b)
{
    return strcmp(((const struct safetensors_pair *)a)->key,
                  ((const struct safetensors_pair *)b)->key);
}

static bool add_entry(cJSON *header, const struct safetensor *t, size_t begin)
{
    cJSON *entry = cJSON_AddObjectToObject(header, t->name);
    cJSON *shape = NULL, *offsets = NULL;
    bool ok = entry && cJSON_AddStringToObject(entry, "dtype", dtypes[t->dtype].name) &&
              (shape = cJSON_AddArrayToObject(entry, "shape")) &&
              (offsets = cJSON_AddArrayToObject(entry, "data_offsets"));
    for (int i = 0; ok && i < t->dims; i++)
        ok = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[i]));
    return ok && cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)begin)) &&
           cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)(begin + t->bytes)));
}

static bool fill_header(cJSON *header, const struct safetensor *tensors, size_t n,
                        const struct safetensors_pair *metadata, size_t n_metadata)
{
    if (n_metadata > 0) {
        cJSON *object = cJSON_AddObjectToObject(header, METADATA_KEY);
        if (!object)
            return false;
        for (size_t i = 0; i < n_metadata; i++)
            if (!cJSON_AddStringToObject(object, metadata[i].key, metadata[i].value))
                return false;
    }
    size_t begin = 0;
    for (size_t i = 0; i < n; i++) {
        if (!add_entry(header, &tensors[i], begin))
            return false;
        begin += tensors[i].bytes;
    }
    return true;
}

/* The header's text behind room for its length, padded with spaces to a multiple of 8; the whole
 * has *length bytes. */
static char *print_header(const cJSON *header, size_t *length)
{
    char *text = json_print(header);
    if (!text)
        return NULL;
    size_t n = strlen(text);
    uint64_t padded = (n + LENGTH_BYTES - 1) / LENGTH_BYTES * LENGTH_BYTES;
    char *out = malloc(LENGTH_BYTES + padded);
    if (out) {
        memcpy(out, &padded, LENGTH_BYTES);
        memcpy(out + LENGTH_BYTES, text, n);
        memset(out + LENGTH_BYTES + n, ' ', padded - n);
        *length = LENGTH_BYTES + padded;
    }
    cJSON_free(text);
    return out;
}

static struct err *write_bytes(const char *path, const char *header, size_t header_bytes,
                               const struct safetensor *tensors, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_errno(errno, "%s", path);
    struct err *e = file_write_all(fd, path, header, header_bytes);
    for (size_t i = 0; i < n && !e; i++)
        e = file_write_all(fd, path, tensors[i].data, tensors[i].bytes);
    if (!e && fsync(fd) != 0)
        e = err_errno(errno, "%s", path);
    if (close(fd) != 0 && !e)
        e = err_errno(errno, "%s", path);
    return e;
}

static struct err *write_renamed(const char *path, const char *header, size_t header_bytes,
                                 const struct safetensor *tensors, size_t n)
{
    char *partial;
    if (asprintf(&partial, "%s.partial", path) < 0)
        return err_no_memory();
    struct err *e = write_bytes(partial, header, header_bytes, tensors, n);
    if (!e && rename(partial, path) != 0)
        e = err_errno(errno, "%s: cannot be renamed to %s", partial, path);
    if (e)
        unlink(partial);
    free(partial);
    return e ? e : file_sync_parent(path);
}

static struct err *sort_and_check(const char *path, struct safetensor *tensors, size_t n)
{
    if (n > 0)
        qsort(tensors, n, sizeof *tensors, by_name);
    for (size_t i = 0; i < n; i++) {
        if (tensors[i].dims < 0 || tensors[i].dims > SAFETENSORS_MAX_DIMS || !measure(&tensors[i]))
            return err_new(ERR_INTERNAL, "%s: tensor %.200s has no valid shape", path,
                           tensors[i].name);
        if (strcmp(tensors[i].name, METADATA_KEY) == 0 ||
            (i > 0 && strcmp(tensors[i].name, tensors[i - 1].name) == 0))
            return err_new(ERR_INTERNAL, "%s: the name %.200s is taken", path, tensors[i].name);
    }
    if (n > 0)
        qsort(tensors, n, sizeof *tensors, by_width);
    return NULL;
}

struct err *safetensors_write(const char *path, const struct safetensor *tensors, size_t n,
                              const struct safetensors_pair *metadata, size_t n_metadata)
{
    struct err *e = NULL;
    size_t header_bytes = 0;
    char *header_text = NULL;
    cJSON *header = cJSON_CreateObject();
    struct safetensor *sorted = calloc(n ? n : 1, sizeof *sorted);
    struct safetensors_pair *pairs = calloc(n_metadata ? n_metadata : 1, sizeof *pairs);
    if (!header || !sorted || !pairs) {
        e = err_no_memory();
        goto out;
    }
    if (n > 0)
        memcpy(sorted, tensors, n * sizeof *sorted);
    if ((e = sort_and_check(path, sorted, n)))
        goto out;
    if (n_metadata > 0) {
        memcpy(pairs, metadata, n_metadata * sizeof *pairs);
        qsort(pairs, n_metadata, sizeof *pairs, by_key);
    }
    if (!fill_header(header, sorted, n, pairs, n_metadata) ||
        !(header_text = print_header(header, &header_bytes)))
        e = err_no_memory();
    else
        e = write_renamed(path, header_text, header_bytes, sorted, n);
out:
    free(header_text);
    cJSON_Delete(header);
    free(sorted);
    free(pairs);
    return e;
}
