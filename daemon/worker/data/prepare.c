#include "daemon/worker/data/prepare.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/base/log.h"
#include "daemon/worker/data/artifact_writer.h"
#include "daemon/worker/data/record.h"
#include "daemon/worker/data/sources.h"

/* Each source is read once to be hashed and once to be tokenized. */
#define PASSES 2

struct preparation {
    const struct prepare_options *options;
    const struct tokenizer *tokenizer;
    struct sources sources;
    int64_t done_bytes;
    uint64_t skipped_empty;
    struct artifact_writer *writer;
};

static struct err *tick(void *user, size_t bytes)
{
    struct preparation *p = user;
    const struct prepare_options *o = p->options;
    p->done_bytes += (int64_t)bytes;
    if (o->progress && !o->progress(o->user, p->done_bytes, PASSES * p->sources.bytes))
        return err_new(ERR_ABORTED, "the preparation of %s was stopped", o->path);
    return NULL;
}

/* ---- The name ---- */

static void hash_string(XXH3_state_t *state, const char *text)
{
    uint64_t n = strlen(text);
    XXH3_128bits_update(state, &n, sizeof n);
    XXH3_128bits_update(state, text, n);
}

static struct err *hash_source(struct preparation *p, struct source *source)
{
    struct source_reader *reader;
    TRY(source_reader_open(source, tick, p, &reader));
    struct err *e = source_reader_hash(reader, &source->hash);
    source_reader_close(reader);
    return e;
}

/* Everything that shapes the artifact: a change in any of it gives another name. */
static struct err *name_artifact(struct preparation *p, char hash[ARTIFACT_HASH_CHARS + 1])
{
    for (size_t i = 0; i < p->sources.count; i++)
        TRY(hash_source(p, &p->sources.items[i]));
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return err_no_memory();
    XXH3_128bits_reset(state);
    uint64_t numbers[] = {ARTIFACT_VERSION, p->sources.count};
    XXH3_128bits_update(state, numbers, sizeof numbers);
    hash_string(state, p->options->format);
    hash_string(state, p->options->field);
    hash_string(state, p->tokenizer->identity);
    for (size_t i = 0; i < p->sources.count; i++) {
        const struct source *source = &p->sources.items[i];
        uint64_t parts[] = {source->kind, source->hash.high64, source->hash.low64};
        XXH3_128bits_update(state, parts, sizeof parts);
    }
    artifact_hex(XXH3_128bits_digest(state), hash);
    XXH3_freeState(state);
    return NULL;
}

/* ---- Documents ---- */

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t')
            return false;
    return true;
}

static struct err *write_record(struct preparation *p, const struct source *source, int64_t number,
                                char *line, size_t bytes)
{
    struct record record;
    struct json_fault fault;
    struct err *e = NULL;
    if (!record_text(line, bytes, p->options->field, &record, &fault)) {
        e = fault.no_memory ? err_no_memory()
                            : err_new(ERR_INVALID, "%s: line %" PRId64 ", byte %zu: %s",
                                      source->path, number, fault.offset + 1, fault.what);
    } else if (record.bytes == 0) {
        p->skipped_empty++;
    } else {
        e = artifact_writer_text(p->writer, record.text, record.bytes);
        if (!e)
            e = artifact_writer_end_document(p->writer);
    }
    cJSON_Delete(record.json);
    return e;
}

static struct err *write_jsonl(struct preparation *p, const struct source *source,
                               struct source_reader *reader)
{
    for (;;) {
        char *line;
        size_t bytes;
        TRY(source_reader_line(reader, PREPARE_MAX_LINE_BYTES, &line, &bytes));
        if (!line)
            return NULL;
        if (!is_blank(line, bytes))
            TRY(write_record(p, source, source_reader_line_number(reader), line, bytes));
    }
}

static struct err *write_text(struct preparation *p, struct source_reader *reader)
{
    bool any = false;
    for (;;) {
        const char *text;
        size_t bytes;
        TRY(source_reader_text(reader, &text, &bytes));
        if (!text)
            break;
        TRY(artifact_writer_text(p->writer, text, bytes));
        any = true;
    }
    if (any)
        return artifact_writer_end_document(p->writer);
    p->skipped_empty++;
    return NULL;
}

static struct err *write_source(struct preparation *p, const struct source *source)
{
    struct source_reader *reader;
    TRY(source_reader_open(source, tick, p, &reader));
    struct err *e =
        source->kind == SOURCE_JSONL ? write_jsonl(p, source, reader) : write_text(p, reader);
    XXH128_hash_t hash;
    if (!e)
        e = source_reader_hash(reader, &hash);
    /* What was tokenized must be what the name promises. */
    if (!e && !XXH128_isEqual(hash, source->hash))
        e = err_new(ERR_CONFLICT, "%s changed while it was read: it must stay as it is meanwhile",
                    source->path);
    source_reader_close(reader);
    return e;
}

/* ---- The manifest's own part ---- */

static bool describe_sources(const struct preparation *p, cJSON *about)
{
    cJSON *list = cJSON_AddArrayToObject(about, "sources");
    for (size_t i = 0; list && i < p->sources.count; i++) {
        const struct source *source = &p->sources.items[i];
        char hash[ARTIFACT_HASH_CHARS + 1];
        artifact_hex(source->hash, hash);
        cJSON *item = cJSON_CreateObject();
        if (!cJSON_AddItemToArray(list, item)) {
            cJSON_Delete(item);
            return false;
        }
        if (!cJSON_AddStringToObject(item, "path", source->path) ||
            !cJSON_AddNumberToObject(item, "bytes", (double)source->bytes) ||
            !cJSON_AddStringToObject(item, "xxh3", hash))
            return false;
    }
    return list != NULL;
}

static struct err *finish(struct preparation *p, const char *hash)
{
    if (artifact_writer_documents(p->writer) == 0)
        return err_new(ERR_INVALID,
                       "%s holds no text (%" PRIu64 " empty records): there must be a document",
                       p->options->path, p->skipped_empty);
    cJSON *about = cJSON_CreateObject();
    struct err *e;
    if (!about || !cJSON_AddStringToObject(about, "format", p->options->format) ||
        !cJSON_AddStringToObject(about, "field", p->options->field) ||
        !cJSON_AddNumberToObject(about, "skipped_empty", (double)p->skipped_empty) ||
        !describe_sources(p, about))
        e = err_no_memory();
    else
        e = artifact_writer_finish(p->writer, hash, about);
    cJSON_Delete(about);
    return e;
}

static struct err *build(struct preparation *p, const char *hash)
{
    TRY(artifact_writer_create(p->options->datasets_directory, p->tokenizer, &p->writer));
    for (size_t i = 0; i < p->sources.count; i++)
        TRY(write_source(p, &p->sources.items[i]));
    return finish(p, hash);
}

/* ---- The whole ---- */

static struct err *fill_result(const char *path, bool verify, struct prepare_result *out)
{
    struct artifact a;
    TRY(artifact_open(path, verify, &a));
    out->documents = (int64_t)a.n_documents;
    out->tokens = (int64_t)a.n_tokens;
    out->bytes = (int64_t)a.text_bytes;
    out->skipped_empty = (int64_t)a.skipped_empty;
    out->unigram_entropy = a.unigram_entropy;
    artifact_close(&a);
    return NULL;
}

static struct err *reuse_or_build(struct preparation *p, struct prepare_result *out)
{
    const struct prepare_options *o = p->options;
    TRY(name_artifact(p, out->hash));
    if (asprintf(&out->artifact, "%s/%s", o->datasets_directory, out->hash) < 0) {
        out->artifact = NULL;
        return err_no_memory();
    }
    struct err *e = fill_result(out->artifact, true, out);
    if (!e) {
        out->reused = true;
        return tick(p, (size_t)(PASSES * p->sources.bytes - p->done_bytes));
    }
    if (err_kind(e) == ERR_INVALID) {
        log_warning("%s; preparing it again", err_message(e));
        err_free(e);
        TRY(artifact_remove(o->datasets_directory, out->hash));
    } else if (err_kind(e) == ERR_NOT_FOUND) {
        err_free(e);
    } else {
        return e;
    }
    TRY(build(p, out->hash));
    return fill_result(out->artifact, false, out);
}

struct err *prepare_run(const struct prepare_options *options, struct prepare_result *out)
{
    struct preparation p = {.options = options};
    *out = (struct prepare_result){0};
    if (strcmp(options->format, "text") != 0)
        return err_new(ERR_INVALID, "format %.64s is not known: it must be \"text\"",
                       options->format);
    TRY(tokenizer_find(options->tokenizer, &p.tokenizer));
    if (mkdir(options->datasets_directory, 0755) != 0 && errno != EEXIST)
        return err_errno(errno, "%s", options->datasets_directory);
    TRY(sources_find(options->path, &p.sources));
    struct err *e = reuse_or_build(&p, out);
    artifact_writer_destroy(p.writer);
    sources_free(&p.sources);
    if (e) {
        free(out->artifact);
        *out = (struct prepare_result){0};
    }
    return e;
}
