/* What the daemon keeps besides jobs: datasets, tasks, nodes, checkpoints. */
#include <stdlib.h>
#include <string.h>

#include "api/doc.h"
#include "api/present.h"
#include "api/routes.h"

#define PAGE_DEFAULT 50

struct listing {
    struct store_page page;
    struct store_task_filter filter;
};

/* Makes r->state, reads limit and cursor (and `extra`). False: answered. */
static bool begin_listing(struct request *r, const struct query *extra)
{
    struct listing *l = calloc(1, sizeof *l);
    if (!l) {
        request_reply_err(r, err_no_memory());
        return false;
    }
    r->state = l;
    r->free_state = free;
    int64_t limit = PAGE_DEFAULT;
    struct query queries[] = {
        {"limit", &limit},
        {"cursor", &l->page.cursor},
        extra ? *extra : (struct query){0},
    };
    if (!request_query(r, queries, extra ? 3 : 2))
        return false;
    l->page.limit = (int)limit;
    return true;
}

static struct err *read_datasets(struct store_tx *tx, struct request *r)
{
    struct listing *l = r->state;
    struct store_datasets datasets;
    TRY(store_datasets_list(tx, &l->page, &datasets));
    cJSON *items = cJSON_CreateArray();
    for (size_t i = 0; i < datasets.count; i++)
        doc_push(items, present_dataset(&datasets.items[i]));
    int64_t last = datasets.count ? datasets.items[datasets.count - 1].id : 0;
    request_reply_json(r, 200, present_page("datasets", items, datasets.more, last));
    return NULL;
}

void route_datasets(struct request *r)
{
    if (begin_listing(r, NULL))
        request_read(r, read_datasets);
}

static struct err *read_tasks(struct store_tx *tx, struct request *r)
{
    struct listing *l = r->state;
    struct store_tasks tasks;
    TRY(store_tasks_list(tx, &l->filter, &l->page, &tasks));
    cJSON *items = cJSON_CreateArray();
    for (size_t i = 0; i < tasks.count; i++)
        doc_push(items, present_task(&tasks.items[i]));
    int64_t last = tasks.count ? tasks.items[tasks.count - 1].id : 0;
    request_reply_json(r, 200, present_page("tasks", items, tasks.more, last));
    return NULL;
}

void route_tasks(struct request *r)
{
    int64_t job_id = 0;
    const struct query job = {"job_id", &job_id};
    if (!begin_listing(r, &job))
        return;
    struct listing *l = r->state;
    l->filter.job_id = job_id;
    request_read(r, read_tasks);
}

static struct err *read_task(struct store_tx *tx, struct request *r)
{
    struct store_task task;
    TRY(store_task_get(tx, r->id, &task));
    request_reply_json(r, 200, present_task(&task));
    return NULL;
}

void route_task(struct request *r)
{
    if (request_query(r, NULL, 0))
        request_read(r, read_task);
}

static cJSON *present_load(const struct api_counters *c)
{
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "cpu_slots_in_use", c->slots_in_use);
    doc_integer(json, "gpu_slots_in_use", c->gpus_in_use);
    doc_time(json, "started_at", c->started_s);
    return json;
}

static struct err *read_nodes(struct store_tx *tx, struct request *r)
{
    struct store_nodes nodes;
    TRY(store_nodes_list(tx, &nodes));
    cJSON *json = cJSON_CreateObject();
    cJSON *items = doc_item(json, "nodes", cJSON_CreateArray());
    for (size_t i = 0; i < nodes.count; i++) {
        cJSON *item = doc_push(items, present_node(&nodes.items[i]));
        if (!nodes.items[i].address) /* this node */
            doc_item(item, "load", present_load(r->state));
    }
    request_reply_json(r, 200, json);
    return NULL;
}

void route_nodes(struct request *r)
{
    if (!request_query(r, NULL, 0))
        return;
    struct api_counters *c = calloc(1, sizeof *c);
    if (!c) {
        request_reply_err(r, err_no_memory());
        return;
    }
    r->state = c;
    r->free_state = free;
    r->control->counters(r->control->user, c);
    request_read(r, read_nodes);
}

static struct err *read_checkpoints(struct store_tx *tx, struct request *r)
{
    struct listing *l = r->state;
    struct store_job job;
    struct store_checkpoints checkpoints;
    TRY(store_job_get(tx, r->id, &job));
    TRY(store_checkpoints_list(tx, r->id, &l->page, &checkpoints));
    cJSON *items = cJSON_CreateArray();
    for (size_t i = 0; i < checkpoints.count; i++)
        doc_push(items, present_checkpoint(&checkpoints.items[i]));
    int64_t last = checkpoints.count ? checkpoints.items[checkpoints.count - 1].id : 0;
    request_reply_json(r, 200, present_page("checkpoints", items, checkpoints.more, last));
    return NULL;
}

void route_job_checkpoints(struct request *r)
{
    if (begin_listing(r, NULL))
        request_read(r, read_checkpoints);
}
