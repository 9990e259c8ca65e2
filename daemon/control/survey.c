#include "daemon/control/survey.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/json.h"
#include "daemon/base/source_kind.h"
#include "store/datasets.h"
#include "store/jobs.h"
#include "store/tasks.h"

#define WAITING_SEEN 64 /* of the queue's head; who stands behind waits anyway */
#define TASKS_SEEN 500
#define PREPARE_TRIES 3 /* of data that changes */

static struct survey_item *add(struct survey *s, enum survey_action action, int64_t id,
                               int64_t order)
{
    if (s->count == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 16;
        struct survey_item *grown = realloc(s->items, capacity * sizeof *grown);
        if (!grown)
            return NULL;
        s->items = grown;
        s->capacity = capacity;
    }
    struct survey_item *item = &s->items[s->count++];
    *item = (struct survey_item){.action = action, .id = id, .order = order, .world = 1};
    return item;
}

void survey_free(struct survey *s)
{
    for (size_t i = 0; i < s->count; i++) {
        free(s->items[i].spec);
        free(s->items[i].artifact);
        free(s->items[i].parameters);
        free(s->items[i].reason);
    }
    free(s->items);
    *s = (struct survey){0};
}

/* ---- What a job needs ---- */

/* What changes when a source changes: so an unchanged one need not be read again. */
struct fingerprint {
    int64_t files, bytes;
    double newest_s;
    char *newest; /* path of the file that changed last; owned */
};

static struct err *add_file(struct fingerprint *f, const char *path, const struct stat *st)
{
    double time_s = (double)st->st_mtim.tv_sec + (double)st->st_mtim.tv_nsec * 1e-9;
    f->files++;
    f->bytes += st->st_size;
    if (f->newest && time_s <= f->newest_s)
        return NULL;
    free(f->newest);
    f->newest_s = time_s;
    f->newest = strdup(path);
    return f->newest ? NULL : err_no_memory();
}

static struct err *look_in(DIR *dir, const char *path, struct fingerprint *out)
{
    struct err *err = NULL;
    struct stat st;
    for (struct dirent *entry; !err && (entry = readdir(dir));) {
        char *file = NULL;
        enum source_kind kind;
        if (!source_kind_of(entry->d_name, &kind))
            continue;
        if (asprintf(&file, "%s/%s", path, entry->d_name) < 0)
            return err_no_memory();
        if (stat(file, &st) == 0 && S_ISREG(st.st_mode))
            err = add_file(out, file, &st);
        free(file);
    }
    return err;
}

static struct err *look_at(const char *path, struct fingerprint *out)
{
    struct stat st;
    *out = (struct fingerprint){0};
    if (stat(path, &st) != 0)
        return err_errno(errno, "the data %s cannot be read any more", path);
    if (!S_ISDIR(st.st_mode))
        return add_file(out, path, &st);
    DIR *dir = opendir(path);
    if (!dir)
        return err_errno(errno, "the data %s cannot be read any more", path);
    struct err *err = look_in(dir, path, out);
    closedir(dir);
    if (!err && !out->files)
        err = err_new(ERR_IO,
                      "the data %s holds no file any more that ends in .jsonl, .ndjson or "
                      ".txt",
                      path);
    return err;
}

/* The parameters of the task that prepares this spec's data: equal ones make equal artifacts.
 * *newest: the file of it that changed last. Both are the caller's, after an error too. */
static struct err *prepare_parameters(const struct config *config, const char *spec_json,
                                      char **out, char **newest)
{
    cJSON *spec;
    *out = *newest = NULL;
    TRY(json_parse(spec_json, strlen(spec_json), &spec));
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(spec, "data");
    const cJSON *path = cJSON_GetObjectItemCaseSensitive(data, "path");
    char *directory = NULL;
    struct fingerprint print = {0};
    struct err *err = NULL;
    if (!cJSON_IsString(path) || asprintf(&directory, "%s/datasets", config->state_directory) < 0)
        err = err_no_memory();
    else
        err = look_at(path->valuestring, &print);
    if (!err) {
        cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "type", "prepare");
        cJSON *copy = cJSON_Duplicate(data, true);
        if (!cJSON_AddItemToObject(json, "data", copy))
            cJSON_Delete(copy);
        cJSON_AddStringToObject(json, "datasets_directory", directory);
        cJSON *source = cJSON_AddObjectToObject(json, "source");
        cJSON_AddNumberToObject(source, "files", (double)print.files);
        cJSON_AddNumberToObject(source, "bytes", (double)print.bytes);
        cJSON_AddNumberToObject(source, "newest", print.newest_s);
        *out = json_print(json);
        cJSON_Delete(json);
        if (!*out)
            err = err_no_memory();
    }
    *newest = print.newest;
    free(directory);
    cJSON_Delete(spec);
    return err;
}

/* The dataset's directory, if it still is whole. NULL: it is not. */
static struct err *artifact_of(struct store_tx *tx, int64_t dataset_id, char **out)
{
    struct store_dataset dataset;
    *out = NULL;
    struct err *err = dataset_id ? store_dataset_get(tx, dataset_id, &dataset) : NULL;
    if (err && err_kind(err) == ERR_NOT_FOUND) {
        err_free(err);
        return NULL;
    }
    TRY(err);
    if (!dataset_id || dataset.deleting)
        return NULL;
    char *manifest = NULL;
    if (asprintf(&manifest, "%s/manifest.json", dataset.path) < 0)
        return err_no_memory();
    bool there = access(manifest, R_OK) == 0;
    free(manifest);
    if (there && !(*out = strdup(dataset.path)))
        return err_no_memory();
    return NULL;
}

/* A task that is there, and not on its way out. */
static bool under_way(const struct store_task *t)
{
    unsigned states = STORE_TASK_MASK(STORE_TASK_QUEUED) | STORE_TASK_MASK(STORE_TASK_RUNNING);
    return (STORE_TASK_MASK(t->state) & states) && !t->cancel_requested;
}

/* No task has these parameters, so none has seen the data as it is now. One that the job has begun
 * is waited for; data that goes on changing is given up. */
static struct err *look_at_own_tasks(struct store_tx *tx, const struct store_job *job,
                                     const char *newest, struct survey_item *item)
{
    struct store_task_filter filter = {.types = 1u << STORE_TASK_PREPARE, .job_id = job->id};
    struct store_page page = {.limit = TASKS_SEEN};
    struct store_tasks tasks;
    int tries = 0;
    item->action = SURVEY_PREPARE;
    TRY(store_tasks_list(tx, &filter, &page, &tasks));
    for (size_t i = 0; i < tasks.count; i++) {
        const struct store_task *t = &tasks.items[i];
        if (job->dataset_id && t->dataset_id == job->dataset_id)
            break; /* the job has run with what that one made; what counts came after it */
        if (under_way(t)) {
            item->action = SURVEY_AWAIT;
            return NULL;
        }
        tries += t->state == STORE_TASK_SUCCEEDED || t->state == STORE_TASK_FAILED;
    }
    if (tries < PREPARE_TRIES)
        return NULL;
    item->action = SURVEY_FAIL;
    return asprintf(&item->reason,
                    "its data could not be prepared: it changes all the time, %s last; each of %d "
                    "tries found it changed since its beginning",
                    newest, tries) < 0
               ? err_no_memory()
               : NULL;
}

/* The newest prepare task of these parameters decides what its job does. */
static struct err *look_for_task(struct store_tx *tx, const struct store_job *job,
                                 const char *newest, struct survey_item *item)
{
    struct store_task_filter filter = {.types = 1u << STORE_TASK_PREPARE};
    struct store_page page = {.limit = TASKS_SEEN};
    struct store_tasks tasks;
    item->action = SURVEY_PREPARE;
    TRY(store_tasks_list(tx, &filter, &page, &tasks));
    for (size_t i = 0; i < tasks.count; i++) {
        const struct store_task *t = &tasks.items[i];
        if (strcmp(t->parameters_json, item->parameters) != 0)
            continue;
        char *artifact = NULL;
        switch (t->state) {
        case STORE_TASK_QUEUED:
        case STORE_TASK_RUNNING:
            if (!under_way(t))
                break;
            item->action = SURVEY_AWAIT;
            return NULL;
        case STORE_TASK_SUCCEEDED:
            TRY(artifact_of(tx, t->dataset_id, &artifact));
            if (artifact) {
                item->action = SURVEY_TAKE;
                item->dataset_id = t->dataset_id;
            }
            free(artifact);
            return NULL;
        case STORE_TASK_FAILED:
            if (t->job_id != job->id)
                return NULL;
            item->action = SURVEY_FAIL;
            if (asprintf(&item->reason, "its data could not be prepared: %s",
                         t->reason ? t->reason : "no reason is known") < 0)
                item->reason = NULL;
            return NULL;
        default:
            break;
        }
    }
    return look_at_own_tasks(tx, job, newest, item);
}

static struct err *judge_job(struct store_tx *tx, const struct config *config, int64_t gpus,
                             const struct store_job *job, struct survey_item *item)
{
    item->world = (int)job->world;
    item->cuda = strcmp(job->device, "cuda") == 0;
    item->state = STORE_JOB_MASK(job->state);
    if (job->intent == STORE_INTENT_CANCEL) {
        item->action = SURVEY_CANCEL;
        return NULL;
    }
    if (job->intent == STORE_INTENT_PAUSE) {
        item->action = SURVEY_HOLD;
        return NULL;
    }
    int64_t slots = item->cuda ? gpus : config->slots;
    if (job->world > slots) {
        item->action = SURVEY_FAIL;
        return asprintf(&item->reason, "it needs %lld %s, but this node has %lld now",
                        (long long)job->world, item->cuda ? "GPUs" : "slots", (long long)slots) < 0
                   ? err_no_memory()
                   : NULL;
    }
    TRY(artifact_of(tx, job->dataset_id, &item->artifact));
    if (item->artifact) {
        item->action = SURVEY_START;
        item->before = job->attempts;
        item->dataset_id = job->dataset_id;
        item->spec = strdup(job->spec_json);
        return item->spec ? NULL : err_no_memory();
    }
    char *newest;
    struct err *err = prepare_parameters(config, job->spec_json, &item->parameters, &newest);
    if (!err) {
        err = look_for_task(tx, job, newest, item);
    } else if (err_kind(err) == ERR_IO || err_kind(err) == ERR_NOT_FOUND) {
        item->action = SURVEY_FAIL;
        item->reason = strdup(err_message(err));
        err_free(err);
        err = item->reason ? NULL : err_no_memory();
    }
    free(newest);
    return err;
}

/* ---- The whole ---- */

static struct err *read_waiting(struct store_tx *tx, const struct config *config, int64_t gpus,
                                struct survey *s)
{
    struct store_job_filter filter = {
        .states = STORE_JOB_MASK(STORE_JOB_QUEUED) | STORE_JOB_MASK(STORE_JOB_PREPARING) |
                  STORE_JOB_MASK(STORE_JOB_RESTARTING),
    };
    struct store_page page = {.limit = WAITING_SEEN, .oldest_first = true};
    struct store_jobs jobs;
    double now_s = store_now();
    TRY(store_jobs_list(tx, &filter, &page, &jobs));
    for (size_t i = 0; i < jobs.count; i++) {
        const struct store_job *job = &jobs.items[i];
        if (job->not_before_s > now_s && job->intent == STORE_INTENT_RUN) {
            if (s->next_s == 0 || job->not_before_s < s->next_s)
                s->next_s = job->not_before_s;
            continue;
        }
        struct survey_item *item = add(s, SURVEY_AWAIT, job->id, job->id);
        if (!item)
            return err_no_memory();
        TRY(judge_job(tx, config, gpus, job, item));
    }
    return NULL;
}

static struct err *read_stopping(struct store_tx *tx, struct survey *s)
{
    struct store_job_filter filter = {.states = STORE_JOB_ACTIVE};
    struct store_page page = {.limit = TASKS_SEEN, .oldest_first = true};
    struct store_jobs jobs;
    TRY(store_jobs_list(tx, &filter, &page, &jobs));
    for (size_t i = 0; i < jobs.count; i++) {
        enum store_intent intent = jobs.items[i].intent;
        enum survey_action action = intent == STORE_INTENT_CANCEL ? SURVEY_STOP : SURVEY_PAUSE;
        if (intent != STORE_INTENT_RUN && !add(s, action, jobs.items[i].id, 0))
            return err_no_memory();
    }
    return NULL;
}

/* Whether the job of a task is in its backoff; read_waiting() knows for how long. */
static struct err *job_waits(struct store_tx *tx, const struct store_task *task, bool *waits)
{
    struct store_job job;
    *waits = false;
    if (!task->job_id)
        return NULL;
    TRY(store_job_get(tx, task->job_id, &job));
    *waits = job.not_before_s > store_now() && job.intent == STORE_INTENT_RUN;
    return NULL;
}

static struct err *read_tasks(struct store_tx *tx, struct survey *s)
{
    struct store_task_filter filter = {
        .states = STORE_TASK_MASK(STORE_TASK_QUEUED) | STORE_TASK_MASK(STORE_TASK_RUNNING),
    };
    struct store_page page = {.limit = TASKS_SEEN, .oldest_first = true};
    struct store_tasks tasks;
    TRY(store_tasks_list(tx, &filter, &page, &tasks));
    for (size_t i = 0; i < tasks.count; i++) {
        const struct store_task *t = &tasks.items[i];
        bool queued = t->state == STORE_TASK_QUEUED;
        bool waits = false;
        if (queued)
            TRY(job_waits(tx, t, &waits));
        if (waits || (!queued && !t->cancel_requested))
            continue;
        struct survey_item *item =
            add(s, queued ? SURVEY_START_TASK : SURVEY_STOP_TASK, t->id, queued ? t->job_id : 0);
        if (!item || !(item->parameters = strdup(t->parameters_json)))
            return err_no_memory();
        item->before = t->started_s > 0;
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    const struct survey_item *x = a, *y = b;
    if (x->order != y->order)
        return x->order < y->order ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

struct err *survey_read(struct store_tx *tx, const struct config *config, int64_t gpus,
                        struct survey *out)
{
    *out = (struct survey){0};
    struct err *err = read_stopping(tx, out);
    if (!err)
        err = read_tasks(tx, out);
    if (!err)
        err = read_waiting(tx, config, gpus, out);
    if (err)
        survey_free(out);
    else if (out->count)
        qsort(out->items, out->count, sizeof *out->items, compare);
    return err;
}
