#include "store/checkpoint_manifest.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "store/checkpoint_digest.h"

#define MAX_MANIFEST_BYTES ((size_t)1 << 28)
#define MAX_COUNT ((int64_t)1 << 53) /* what JSON numbers hold */

void checkpoint_shard_name(int rank, int world, char name[static CHECKPOINT_SHARD_BYTES])
{
    snprintf(name, CHECKPOINT_SHARD_BYTES, "shard-%05d-of-%05d.safetensors", rank, world);
}

/* ---- Reading: fields ---- */

struct err *checkpoint_parse_json(const char *path, const char *text, size_t length, cJSON **out)
{
    struct err *e = json_parse(text, length, out);
    return e ? err_wrap(e, "%s", path) : NULL;
}

/* `where` is "" or the place of the object that holds the field, with its dot. */
__attribute__((format(printf, 4, 5))) static struct err *
bad(const char *path, const char *where, const char *key, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return err_new(ERR_INVALID, "%s: %s%s %s", path, where, key, what);
}

static bool whole_number(const cJSON *item, int64_t least, int64_t most, int64_t *out)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= (double)least) ||
        !(item->valuedouble <= (double)most) || item->valuedouble != floor(item->valuedouble))
        return false;
    *out = (int64_t)item->valuedouble;
    return true;
}

static struct err *read_number(const char *path, const char *where, const cJSON *object,
                               const char *key, int64_t least, int64_t most, int64_t *out)
{
    if (whole_number(cJSON_GetObjectItemCaseSensitive(object, key), least, most, out))
        return NULL;
    return bad(path, where, key, "must be a whole number from %" PRId64 " to %" PRId64, least,
               most);
}

static struct err *read_int(const char *path, const char *where, const cJSON *object,
                            const char *key, int least, int most, int *out)
{
    int64_t value;
    TRY(read_number(path, where, object, key, least, most, &value));
    *out = (int)value;
    return NULL;
}

static struct err *read_string(const char *path, const char *where, const cJSON *object,
                               const char *key, const char **out)
{
    *out = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    return *out && **out ? NULL : bad(path, where, key, "must be a string that is not empty");
}

static struct err *read_digest(const char *path, const char *where, const cJSON *object,
                               const char *key, const char **out)
{
    TRY(read_string(path, where, object, key, out));
    return digest_is_valid(*out)
               ? NULL
               : bad(path, where, key, "must be %d lower-case hex digits", DIGEST_CHARS);
}

static struct err *read_facts(const char *path, struct checkpoint_manifest *m)
{
    struct checkpoint_facts *f = &m->facts;
    int64_t version, seed;
    TRY(read_number(path, "", m->json, "version", 0, MAX_COUNT, &version));
    if (version != CHECKPOINT_VERSION)
        return bad(path, "", "version", "is %" PRId64 ", but this program reads version %d",
                   version, CHECKPOINT_VERSION);
    TRY(read_number(path, "", m->json, "job", 0, MAX_COUNT, &f->job));
    TRY(read_number(path, "", m->json, "attempt", 0, MAX_COUNT, &f->attempt));
    TRY(read_number(path, "", m->json, "step", 0, MAX_COUNT, &f->step));
    TRY(read_number(path, "", m->json, "optimizer_step", 0, MAX_COUNT, &f->optimizer_step));
    TRY(read_number(path, "", m->json, "data_position", 0, MAX_COUNT, &f->data_position));
    TRY(read_number(path, "", m->json, "seed", 0, MAX_COUNT, &seed));
    f->seed = (uint64_t)seed;
    TRY(read_int(path, "", m->json, "world", 1, CHECKPOINT_MAX_WORLD, &f->world));
    const cJSON *parallel = cJSON_GetObjectItemCaseSensitive(m->json, "parallel");
    TRY(read_string(path, "parallel.", parallel, "mode", &f->mode));
    TRY(read_int(path, "parallel.", parallel, "degree", 1, f->world, &f->degree));
    TRY(read_int(path, "parallel.", parallel, "data", 1, f->world, &f->data));
    if ((int64_t)f->degree * f->data != f->world)
        return bad(path, "", "world", "is %d, but parallel.degree x data is %d x %d", f->world,
                   f->degree, f->data);
    f->spec = cJSON_GetObjectItemCaseSensitive(m->json, "spec");
    if (!cJSON_IsObject(f->spec))
        return bad(path, "", "spec", "must be an object");
    TRY(read_digest(path, "", m->json, "id", &m->id));
    const cJSON *created = cJSON_GetObjectItemCaseSensitive(m->json, "created");
    if (!cJSON_IsNumber(created) || !isfinite(created->valuedouble))
        return bad(path, "", "created", "must be a number");
    m->created_s = created->valuedouble;
    return NULL;
}

/* ---- Reading: parameters ---- */

static int parameter_by_name(const void *a, const void *b)
{
    return strcmp(((const struct checkpoint_parameter *)a)->name,
                  ((const struct checkpoint_parameter *)b)->name);
}

const struct checkpoint_parameter *checkpoint_manifest_find(const struct checkpoint_manifest *m,
                                                            const char *name)
{
    struct checkpoint_parameter key = {.name = name};
    return bsearch(&key, m->parameters, m->n_parameters, sizeof key, parameter_by_name);
}

static struct err *read_parameter(const char *path, const cJSON *entry, size_t index,
                                  struct checkpoint_parameter *out)
{
    char where[48];
    snprintf(where, sizeof where, "parameters[%zu].", index);
    TRY(read_string(path, where, entry, "name", &out->name));
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    out->dims = cJSON_IsArray(shape) ? cJSON_GetArraySize(shape) : 0;
    if (out->dims < 1 || out->dims > 2)
        return bad(path, where, "shape", "must be an array of one or two numbers");
    out->count = 1;
    for (int i = 0; i < out->dims; i++)
        if (!whole_number(cJSON_GetArrayItem(shape, i), 1, MAX_COUNT, &out->shape[i]) ||
            __builtin_mul_overflow(out->count, out->shape[i], &out->count) ||
            out->count > MAX_COUNT)
            return bad(path, where, "shape", "must hold whole numbers of a product up to %" PRId64,
                       MAX_COUNT);
    return NULL;
}

static struct err *read_parameters(const char *path, struct checkpoint_manifest *m)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(m->json, "parameters");
    if (!cJSON_IsArray(array) || !array->child)
        return bad(path, "", "parameters", "must be an array that is not empty");
    m->parameters = calloc((size_t)cJSON_GetArraySize(array), sizeof *m->parameters);
    if (!m->parameters)
        return err_no_memory();
    for (const cJSON *entry = array->child; entry; entry = entry->next) {
        TRY(read_parameter(path, entry, m->n_parameters, &m->parameters[m->n_parameters]));
        m->n_parameters++;
    }
    qsort(m->parameters, m->n_parameters, sizeof *m->parameters, parameter_by_name);
    for (size_t i = 1; i < m->n_parameters; i++)
        if (strcmp(m->parameters[i - 1].name, m->parameters[i].name) == 0)
            return bad(path, "", "parameters", "holds %.200s twice", m->parameters[i].name);
    return NULL;
}

/* ---- Reading: shards ---- */

static struct err *read_range(const char *path, const char *where, struct checkpoint_manifest *m,
                              size_t shard, const cJSON *range)
{
    struct checkpoint_piece *piece = &m->pieces[m->n_pieces];
    const struct checkpoint_parameter *p = checkpoint_manifest_find(m, range->string);
    if (!p)
        return bad(path, where, "ranges", "names %.150s, which is not in parameters",
                   range->string);
    piece->parameter = (size_t)(p - m->parameters);
    piece->shard = shard;
    if (!cJSON_IsArray(range) || cJSON_GetArraySize(range) != 2 ||
        !whole_number(range->child, 0, p->count, &piece->begin) ||
        !whole_number(range->child->next, 0, p->count, &piece->end) || piece->begin >= piece->end)
        return bad(path, where, "ranges",
                   "of %.100s must be two rising whole numbers up to %" PRId64, p->name, p->count);
    m->n_pieces++;
    return NULL;
}

static struct err *read_shard(const char *path, struct checkpoint_manifest *m, const cJSON *entry,
                              int rank)
{
    struct checkpoint_shard *shard = &m->shards[rank];
    char where[48], name[CHECKPOINT_SHARD_BYTES];
    int found;
    snprintf(where, sizeof where, "shards[%d].", rank);
    checkpoint_shard_name(rank, m->facts.world, name);
    TRY(read_string(path, where, entry, "file", &shard->file));
    if (strcmp(shard->file, name) != 0)
        return bad(path, where, "file", "must be %s", name);
    TRY(read_int(path, where, entry, "rank", rank, rank, &found));
    TRY(read_number(path, where, entry, "bytes", 0, MAX_COUNT, &shard->bytes));
    TRY(read_digest(path, where, entry, "xxh3", &shard->xxh3));
    const cJSON *ranges = cJSON_GetObjectItemCaseSensitive(entry, "ranges");
    if (!cJSON_IsObject(ranges))
        return bad(path, where, "ranges", "must be an object");
    for (const cJSON *range = ranges->child; range; range = range->next)
        TRY(read_range(path, where, m, (size_t)rank, range));
    return NULL;
}

static int piece_by_place(const void *a, const void *b)
{
    const struct checkpoint_piece *x = a, *y = b;
    if (x->parameter != y->parameter)
        return x->parameter < y->parameter ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static struct err *missing(const char *path, const struct checkpoint_parameter *p, int64_t begin,
                           int64_t end)
{
    return err_new(ERR_INVALID, "%s: no shard holds elements %" PRId64 " to %" PRId64 " of %.200s",
                   path, begin, end, p->name);
}

/* The pieces of each parameter lie end to end and are all of it. */
static struct err *check_pieces(const char *path, const struct checkpoint_manifest *m)
{
    const struct checkpoint_piece *piece = m->pieces, *end = m->pieces + m->n_pieces;
    for (size_t i = 0; i < m->n_parameters; i++) {
        const struct checkpoint_parameter *p = &m->parameters[i];
        int64_t covered = 0;
        for (; piece < end && piece->parameter == i; piece++) {
            if (piece->begin > covered)
                return missing(path, p, covered, piece->begin);
            if (piece->begin < covered)
                return err_new(ERR_INVALID,
                               "%s: elements from %" PRId64
                               " of %.200s stand in two places: in %s and in %s",
                               path, piece->begin, p->name, m->shards[piece[-1].shard].file,
                               m->shards[piece->shard].file);
            covered = piece->end;
        }
        if (covered < p->count)
            return missing(path, p, covered, p->count);
    }
    return NULL;
}

static struct err *read_shards(const char *path, struct checkpoint_manifest *m)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(m->json, "shards");
    if (!cJSON_IsArray(array) || cJSON_GetArraySize(array) != m->facts.world)
        return bad(path, "", "shards", "must be an array of %d, the world's size", m->facts.world);
    size_t most = 0;
    for (const cJSON *entry = array->child; entry; entry = entry->next)
        most += (size_t)cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(entry, "ranges"));
    m->shards = calloc((size_t)m->facts.world, sizeof *m->shards);
    m->pieces = calloc(most + 1, sizeof *m->pieces);
    if (!m->shards || !m->pieces)
        return err_no_memory();
    int rank = 0;
    for (const cJSON *entry = array->child; entry; entry = entry->next)
        TRY(read_shard(path, m, entry, rank++));
    qsort(m->pieces, m->n_pieces, sizeof *m->pieces, piece_by_place);
    return check_pieces(path, m);
}

/* ---- Reading: the whole ---- */

static struct err *read_all(const char *path, const char *text, size_t length,
                            struct checkpoint_manifest *m)
{
    TRY(checkpoint_parse_json(path, text, length, &m->json));
    if (!cJSON_IsObject(m->json))
        return err_new(ERR_INVALID, "%s must hold an object", path);
    TRY(read_facts(path, m));
    TRY(read_parameters(path, m));
    return read_shards(path, m);
}

struct err *checkpoint_manifest_parse(const char *path, const char *text, size_t length,
                                      struct checkpoint_manifest *out)
{
    *out = (struct checkpoint_manifest){0};
    struct err *e = read_all(path, text, length, out);
    if (e)
        checkpoint_manifest_free(out);
    return e;
}

struct err *checkpoint_manifest_read(const char *directory, struct checkpoint_manifest *out)
{
    char *path, *text = NULL;
    size_t length;
    *out = (struct checkpoint_manifest){0};
    if (asprintf(&path, "%s/" CHECKPOINT_MANIFEST, directory) < 0)
        return err_no_memory();
    struct err *e = file_read(path, MAX_MANIFEST_BYTES, &text, &length);
    if (!e)
        e = checkpoint_manifest_parse(path, text, length, out);
    free(text);
    free(path);
    return e;
}

void checkpoint_manifest_free(struct checkpoint_manifest *m)
{
    free(m->pieces);
    free(m->shards);
    free(m->parameters);
    cJSON_Delete(m->json);
    *m = (struct checkpoint_manifest){0};
}
