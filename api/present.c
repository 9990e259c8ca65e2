#include "api/present.h"

#include <stdio.h>
#include <string.h>

#include "api/doc.h"
#include "store/metrics.h"

cJSON *present_job(const struct store_job *job)
{
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "id", job->id);
    doc_text(json, "name", job->name);
    doc_text(json, "state", store_job_state_name(job->state));
    doc_text(json, "intent", store_intent_name(job->intent));
    doc_text(json, "reason", job->reason);
    doc_text(json, "device", job->device);
    doc_integer(json, "world", job->world);
    doc_integer(json, "steps", job->steps);
    doc_integer(json, "step", job->step);
    doc_integer(json, "attempt", job->attempts);
    doc_integer(json, "restarts", job->restarts);
    if (job->dataset_id)
        doc_integer(json, "dataset_id", job->dataset_id);
    else
        cJSON_AddNullToObject(json, "dataset_id");
    doc_text(json, "created_by", job->created_by);
    doc_time(json, "created_at", job->created_s);
    doc_time(json, "started_at", job->started_s);
    doc_time(json, "finished_at", job->finished_s);
    doc_time(json, "updated_at", job->updated_s);
    return json;
}

static cJSON *present_worker(const struct store_worker *w)
{
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "rank", w->rank);
    doc_integer(json, "node_id", w->node_id);
    if (w->gpu >= 0)
        doc_integer(json, "gpu", w->gpu);
    else
        cJSON_AddNullToObject(json, "gpu");
    doc_text(json, "state", store_worker_state_name(w->state));
    if (w->pid)
        doc_integer(json, "pid", w->pid);
    else
        cJSON_AddNullToObject(json, "pid");
    doc_text(json, "device", w->device);
    doc_integer(json, "threads", w->threads);
    doc_integer(json, "memory_bytes", w->memory_bytes);
    doc_text(json, "exit_status", w->exit_status);
    doc_text(json, "exit_kind", w->exit_kind);
    doc_text(json, "reason", w->reason);
    doc_time(json, "started_at", w->started_s);
    doc_time(json, "ended_at", w->ended_s);
    return json;
}

static cJSON *present_attempt(const struct store_attempt *a, const struct store_workers *workers)
{
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "number", a->number);
    doc_text(json, "state", store_attempt_state_name(a->state));
    doc_text(json, "outcome", store_outcome_name(a->outcome));
    doc_text(json, "reason", a->reason);
    doc_integer(json, "start_step", a->start_step);
    doc_time(json, "created_at", a->created_s);
    doc_time(json, "ended_at", a->ended_s);
    doc_time(json, "lease_until", a->lease_until_s);
    cJSON *list = doc_item(json, "workers", cJSON_CreateArray());
    for (size_t i = 0; i < workers->count; i++)
        if (workers->items[i].attempt == a->number)
            doc_push(list, present_worker(&workers->items[i]));
    return json;
}

/* The newest value of each metric, and what it says about the time left. */
static struct err *add_latest(struct store_tx *tx, const struct store_job *job, cJSON *json)
{
    struct store_latest *latest;
    size_t count;
    TRY(store_metrics_latest(tx, job->id, &latest, &count));
    cJSON *metrics = doc_item(json, "latest", cJSON_CreateObject());
    double left_s = -1;
    for (size_t i = 0; i < count; i++) {
        cJSON *value = doc_item(metrics, latest[i].key, cJSON_CreateObject());
        doc_integer(value, "step", latest[i].step);
        doc_number(value, "value", latest[i].value);
        if (strcmp(latest[i].key, "step_s") == 0 && latest[i].value >= 0)
            left_s = latest[i].value * (double)(job->steps - job->step);
    }
    if (left_s >= 0 && job->state == STORE_JOB_RUNNING)
        doc_number(json, "seconds_left", left_s);
    else
        cJSON_AddNullToObject(json, "seconds_left");
    return NULL;
}

struct err *present_job_whole(struct store_tx *tx, int64_t id, cJSON **out)
{
    struct store_job job;
    struct store_attempts attempts;
    struct store_workers workers;
    *out = NULL;
    TRY(store_job_get(tx, id, &job));
    TRY(store_attempts_list(tx, id, &attempts));
    TRY(store_workers_list(tx, id, 0, &workers));
    cJSON *json = present_job(&job);
    struct err *err = add_latest(tx, &job, json);
    if (err) {
        cJSON_Delete(json);
        return err;
    }
    doc_raw(json, "spec", job.spec_json);
    cJSON *list = doc_item(json, "attempts", cJSON_CreateArray());
    for (size_t i = 0; i < attempts.count; i++)
        doc_push(list, present_attempt(&attempts.items[i], &workers));
    *out = json;
    return NULL;
}

cJSON *present_event(const struct store_event *e)
{
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "id", e->id);
    doc_integer(json, "job_id", e->job_id);
    doc_time(json, "time", e->time_s);
    doc_text(json, "type", e->type);
    if (e->attempt)
        doc_integer(json, "attempt", e->attempt);
    if (e->rank >= 0)
        doc_integer(json, "rank", e->rank);
    if (e->from)
        doc_text(json, "from", e->from);
    if (e->to)
        doc_text(json, "to", e->to);
    doc_text(json, "message", e->message);
    if (e->data_json)
        doc_raw(json, "data", e->data_json);
    return json;
}

cJSON *present_task(const struct store_task *t)
{
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "id", t->id);
    doc_text(json, "type", store_task_type_name(t->type));
    doc_text(json, "state", store_task_state_name(t->state));
    doc_text(json, "reason", t->reason);
    if (t->job_id)
        doc_integer(json, "job_id", t->job_id);
    else
        cJSON_AddNullToObject(json, "job_id");
    if (t->dataset_id)
        doc_integer(json, "dataset_id", t->dataset_id);
    else
        cJSON_AddNullToObject(json, "dataset_id");
    cJSON *progress = doc_item(json, "progress", cJSON_CreateObject());
    doc_integer(progress, "done", t->done);
    if (t->total)
        doc_integer(progress, "total", t->total);
    else
        cJSON_AddNullToObject(progress, "total");
    doc_text(progress, "unit", t->unit);
    doc_raw(json, "parameters", t->parameters_json);
    doc_raw(json, "result", t->result_json);
    if (t->pid)
        doc_integer(json, "pid", t->pid);
    else
        cJSON_AddNullToObject(json, "pid");
    doc_text(json, "created_by", t->created_by);
    doc_time(json, "created_at", t->created_s);
    doc_time(json, "started_at", t->started_s);
    doc_time(json, "finished_at", t->finished_s);
    return json;
}

cJSON *present_dataset(const struct store_dataset *d)
{
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "id", d->id);
    doc_text(json, "hash", d->hash);
    doc_text(json, "name", d->name);
    doc_text(json, "path", d->path);
    doc_integer(json, "documents", d->documents);
    doc_integer(json, "tokens", d->tokens);
    doc_integer(json, "bytes", d->bytes);
    doc_number(json, "unigram_entropy", d->unigram_entropy);
    doc_raw(json, "data", d->spec_json);
    doc_time(json, "created_at", d->created_s);
    return json;
}

cJSON *present_checkpoint(const struct store_checkpoint *c)
{
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "id", c->id);
    doc_integer(json, "job_id", c->job_id);
    doc_integer(json, "attempt", c->attempt);
    doc_integer(json, "step", c->step);
    doc_integer(json, "bytes", c->size_bytes);
    doc_text(json, "directory", c->directory);
    cJSON_AddBoolToObject(json, "deleting", c->deleting);
    doc_time(json, "created_at", c->created_s);
    return json;
}

cJSON *present_node(const struct store_node *n)
{
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "id", n->id);
    doc_text(json, "name", n->name);
    doc_text(json, "address", n->address);
    doc_text(json, "version", n->version);
    cJSON_AddBoolToObject(json, "draining", n->draining);
    doc_integer(json, "cpu_slots", n->cpu_slots);
    doc_integer(json, "gpu_slots", n->gpu_slots);
    doc_raw(json, "resources", n->resources_json);
    doc_time(json, "registered_at", n->registered_s);
    doc_time(json, "seen_at", n->seen_s);
    return json;
}

cJSON *present_page(const char *key, cJSON *items, bool more, int64_t last_id)
{
    cJSON *json = cJSON_CreateObject();
    doc_item(json, key, items);
    char cursor[32];
    snprintf(cursor, sizeof cursor, "%lld", (long long)last_id);
    doc_text(json, "next_cursor", more ? cursor : NULL);
    return json;
}
