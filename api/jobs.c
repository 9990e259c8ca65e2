/* Jobs: list, one, metrics. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/doc.h"
#include "api/present.h"
#include "api/routes.h"
#include "store/metrics.h"

#define PAGE_DEFAULT 50

/* ---- GET /v1/jobs ---- */

struct listing {
    struct store_page page;
    struct store_job_filter filter;
    char *name;
};

static void free_listing(void *state)
{
    struct listing *l = state;
    free(l->name);
    free(l);
}

static struct err *read_listing(struct store_tx *tx, struct request *r)
{
    struct listing *l = r->state;
    struct store_jobs jobs;
    TRY(store_jobs_list(tx, &l->filter, &l->page, &jobs));
    cJSON *items = cJSON_CreateArray();
    for (size_t i = 0; i < jobs.count; i++)
        doc_push(items, present_job(&jobs.items[i]));
    int64_t last = jobs.count ? jobs.items[jobs.count - 1].id : 0;
    request_reply_json(r, 200, present_page("jobs", items, jobs.more, last));
    return NULL;
}

/* "running,queued" as a set. */
static bool parse_states(struct request *r, const char *text, unsigned *out)
{
    while (text && *text) {
        size_t n = strcspn(text, ",");
        char name[32];
        enum store_job_state state;
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), text);
        if (!store_job_state_parse(name, &state)) {
            request_reply_problem(r, 400, "invalid-parameter", NULL,
                                  "The query is wrong: state \"%s\" is none; there are queued, "
                                  "preparing, starting, running, restarting, paused, succeeded, "
                                  "failed, cancelled.",
                                  name);
            return false;
        }
        *out |= STORE_JOB_MASK(state);
        text += n + (text[n] == ',');
    }
    return true;
}

void route_jobs_list(struct request *r)
{
    struct listing *l = calloc(1, sizeof *l);
    if (!l) {
        request_reply_err(r, err_no_memory());
        return;
    }
    r->state = l;
    r->free_state = free_listing;
    const char *states = NULL, *name = NULL;
    int64_t limit = PAGE_DEFAULT;
    const struct query queries[] = {
        {"state", &states},
        {"name", &name},
        {"limit", &limit},
        {"cursor", &l->page.cursor},
    };
    if (!request_query(r, queries, sizeof queries / sizeof queries[0]) ||
        !parse_states(r, states, &l->filter.states))
        return;
    l->page.limit = (int)limit;
    if (name && !(l->name = strdup(name))) {
        request_reply_err(r, err_no_memory());
        return;
    }
    l->filter.name = l->name;
    request_read(r, read_listing);
}

/* ---- GET /v1/jobs/{id} ---- */

static struct err *reply_job(struct store_tx *tx, struct request *r)
{
    cJSON *json;
    TRY(present_job_whole(tx, r->id, &json));
    request_reply_json(r, 200, json);
    return NULL;
}

void route_job(struct request *r)
{
    if (request_query(r, NULL, 0))
        request_read(r, reply_job);
}

/* ---- GET /v1/jobs/{id}/metrics ---- */

#define KEYS_MOST 64

struct series {
    int64_t from, to, points;
    char *keys; /* comma-separated; NULL: all */
};

static void free_series(void *state)
{
    struct series *s = state;
    free(s->keys);
    free(s);
}

static struct err *add_series(struct store_tx *tx, struct request *r, const char *key, cJSON *json)
{
    struct series *s = r->state;
    struct store_series series;
    TRY(store_metrics_series(tx, r->id, key, s->from, s->to, (size_t)s->points, &series));
    cJSON *item = doc_item(json, key, cJSON_CreateObject());
    cJSON *steps = doc_item(item, "steps", cJSON_CreateArray());
    cJSON *values = doc_item(item, "values", cJSON_CreateArray());
    for (size_t i = 0; i < series.count; i++) {
        doc_push(steps, cJSON_CreateNumber((double)series.steps[i]));
        doc_push(values, doc_number_value(series.values[i]));
    }
    doc_integer(item, "total", (int64_t)series.total);
    cJSON_AddBoolToObject(item, "sampled", series.sampled);
    return NULL;
}

static struct err *add_named(struct store_tx *tx, struct request *r, cJSON *json)
{
    struct series *s = r->state;
    char *copy = strdup(s->keys), *rest = copy;
    if (!copy)
        return err_no_memory();
    struct err *err = NULL;
    int count = 0;
    for (char *key; !err && (key = strsep(&rest, ","));) {
        if (*key == '\0' || cJSON_GetObjectItemCaseSensitive(json, key))
            continue;
        err = ++count > KEYS_MOST ? err_new(ERR_INVALID, "keys: at most %d at a time", KEYS_MOST)
                                  : add_series(tx, r, key, json);
    }
    free(copy);
    return err;
}

static struct err *add_all(struct store_tx *tx, struct request *r, cJSON *json)
{
    const char *const *keys;
    size_t count;
    TRY(store_metrics_keys(tx, r->id, &keys, &count));
    for (size_t i = 0; i < count; i++)
        TRY(add_series(tx, r, keys[i], json));
    return NULL;
}

static struct err *read_series(struct store_tx *tx, struct request *r)
{
    struct series *s = r->state;
    struct store_job job;
    TRY(store_job_get(tx, r->id, &job));
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "job_id", r->id);
    cJSON *all = doc_item(json, "series", cJSON_CreateObject());
    struct err *err = s->keys ? add_named(tx, r, all) : add_all(tx, r, all);
    if (err) {
        cJSON_Delete(json);
        return err;
    }
    request_reply_json(r, 200, json);
    return NULL;
}

void route_job_metrics(struct request *r)
{
    struct series *s = calloc(1, sizeof *s);
    if (!s) {
        request_reply_err(r, err_no_memory());
        return;
    }
    r->state = s;
    r->free_state = free_series;
    s->to = INT64_MAX;
    s->points = 1000;
    const char *keys = NULL;
    const struct query queries[] = {
        {"keys", &keys},
        {"from", &s->from},
        {"to", &s->to},
        {"points", &s->points},
    };
    if (!request_query(r, queries, sizeof queries / sizeof queries[0]))
        return;
    if (keys && !(s->keys = strdup(keys))) {
        request_reply_err(r, err_no_memory());
        return;
    }
    request_read(r, read_series);
}
