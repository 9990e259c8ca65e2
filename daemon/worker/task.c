#include "daemon/worker/task.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/file.h"
#include "daemon/worker/data/prepare.h"

/* Progress is a record: not more of them than somebody watching wants. */
#define PROGRESS_EVERY_S 0.5

struct preparation {
    struct link *link;
    double reported_s;
};

static bool on_progress(void *user, int64_t done, int64_t total)
{
    struct preparation *p = user;
    double now = clock_s();
    if (now - p->reported_s >= PROGRESS_EVERY_S) {
        p->reported_s = now;
        cJSON *fields = cJSON_CreateObject();
        cJSON_AddNumberToObject(fields, "done", (double)done);
        cJSON_AddNumberToObject(fields, "total", (double)total);
        cJSON_AddStringToObject(fields, "unit", "bytes");
        err_free(link_record(p->link, "progress", fields));
    }
    return !(link_orders(p->link) & (LINK_STOP | LINK_LEASE_OVER));
}

static const char *string_at(const cJSON *object, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
}

static struct err *record_prepared(struct link *link, const struct prepare_result *result)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "artifact", result->artifact);
    cJSON_AddStringToObject(fields, "hash", result->hash);
    cJSON_AddBoolToObject(fields, "reused", result->reused);
    cJSON_AddNumberToObject(fields, "documents", (double)result->documents);
    cJSON_AddNumberToObject(fields, "tokens", (double)result->tokens);
    cJSON_AddNumberToObject(fields, "bytes", (double)result->bytes);
    cJSON_AddNumberToObject(fields, "skipped_empty", (double)result->skipped_empty);
    cJSON_AddNumberToObject(fields, "unigram_entropy", result->unigram_entropy);
    return link_record(link, "done", fields);
}

static struct err *prepare(struct link *link, const cJSON *task)
{
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(task, "data");
    struct preparation preparation = {.link = link};
    struct prepare_options options = {
        .path = string_at(data, "path"),
        .format = string_at(data, "format"),
        .field = string_at(data, "field"),
        .tokenizer = string_at(data, "tokenizer"),
        .datasets_directory = string_at(task, "datasets_directory"),
        .progress = on_progress,
        .user = &preparation,
    };
    if (!options.path || !options.format || !options.field || !options.tokenizer ||
        !options.datasets_directory)
        return err_new(ERR_INTERNAL, "the daemon's prepare task lacks a parameter");
    TRY(file_expect_unmoved(options.path));
    struct prepare_result result;
    TRY(prepare_run(&options, &result));
    struct err *e = record_prepared(link, &result);
    free(result.artifact);
    return e;
}

struct err *task_run(struct link *link, bool *stopped)
{
    const cJSON *task = cJSON_GetObjectItemCaseSensitive(link_welcome(link), "task");
    const char *type = string_at(task, "type");
    if (!type || strcmp(type, "prepare"))
        return err_new(ERR_INTERNAL, "this worker knows no task of type \"%s\"", type ? type : "");
    struct err *e = prepare(link, task);
    if (e && err_kind(e) == ERR_ABORTED) {
        *stopped = true;
        err_free(e);
        return NULL;
    }
    return e;
}
