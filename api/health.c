/* Whether the daemon lives and is ready, and its numbers for Prometheus. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/doc.h"
#include "api/routes.h"
#include "api/server.h"
#include "store/jobs.h"

void route_healthz(struct request *r)
{
    cJSON *json = cJSON_CreateObject();
    doc_text(json, "status", "ok");
    doc_text(json, "version", DLLMD_VERSION);
    request_reply_json(r, 200, json);
}

/* Ready means that the database answers, too. */
static struct err *read_ready(struct store_tx *tx, struct request *r)
{
    int64_t counts[STORE_JOB_STATES];
    TRY(store_jobs_count(tx, counts));
    cJSON *json = cJSON_CreateObject();
    doc_text(json, "status", "ready");
    request_reply_json(r, 200, json);
    return NULL;
}

void route_readyz(struct request *r)
{
    const char *why = r->control->not_ready(r->control->user);
    if (why)
        request_reply_problem(r, 503, "not-ready", NULL, "%s.", why);
    else
        request_read(r, read_ready);
}

/* ---- GET /metrics ---- */

struct exposition {
    struct api_counters counters;
    int64_t slots, requests, streams;
};

static void metric(FILE *out, const char *name, const char *type, const char *help, double value)
{
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n%s %.17g\n", name, help, name, type, name, value);
}

static struct err *read_prometheus(struct store_tx *tx, struct request *r)
{
    struct exposition *e = r->state;
    const struct api_counters *c = &e->counters;
    int64_t counts[STORE_JOB_STATES];
    char *text = NULL;
    size_t bytes = 0;
    TRY(store_jobs_count(tx, counts));
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return err_no_memory();
    fprintf(out,
            "# HELP dllmd_build_info The version of this daemon.\n"
            "# TYPE dllmd_build_info gauge\ndllmd_build_info{version=\"%s\"} 1\n",
            DLLMD_VERSION);
    fprintf(out, "# HELP dllmd_jobs Jobs by state.\n# TYPE dllmd_jobs gauge\n");
    for (int i = 0; i < STORE_JOB_STATES; i++)
        fprintf(out, "dllmd_jobs{state=\"%s\"} %lld\n", store_job_state_name(i),
                (long long)counts[i]);
    metric(out, "dllmd_slots", "gauge", "CPU slots of this node.", (double)e->slots);
    metric(out, "dllmd_slots_in_use", "gauge", "CPU slots that ranks and tasks hold.",
           (double)c->slots_in_use);
    metric(out, "dllmd_workers", "gauge", "Worker processes of ranks that are alive.",
           (double)c->workers);
    metric(out, "dllmd_task_processes", "gauge", "Worker processes of tasks that are alive.",
           (double)c->tasks);
    metric(out, "dllmd_workers_connected", "gauge", "Worker processes that hold a connection.",
           (double)c->workers_connected);
    metric(out, "dllmd_event_streams", "gauge", "Open event streams.", (double)e->streams);
    metric(out, "dllmd_workers_started_total", "counter", "Worker processes started.",
           (double)c->workers_started_total);
    metric(out, "dllmd_workers_lost_total", "counter",
           "Worker processes that ended without saying why.", (double)c->workers_lost_total);
    metric(out, "dllmd_worker_records_total", "counter", "Records of workers committed.",
           (double)c->records_total);
    metric(out, "dllmd_http_requests_total", "counter", "HTTP requests begun.",
           (double)e->requests);
    metric(out, "dllmd_start_time_seconds", "gauge", "Start of the daemon since 1970.",
           c->started_s);
    if (fclose(out) != 0) {
        free(text);
        return err_no_memory();
    }
    request_reply_text(r, 200, "text/plain; version=0.0.4; charset=utf-8", text);
    return NULL;
}

void route_prometheus(struct request *r)
{
    struct exposition *e = calloc(1, sizeof *e);
    if (!e) {
        request_reply_err(r, err_no_memory());
        return;
    }
    r->state = e;
    r->free_state = free;
    r->control->counters(r->control->user, &e->counters);
    e->slots = r->control->cpu_slots;
    e->requests = r->api->requests_total;
    e->streams = r->api->n_streams;
    request_read(r, read_prometheus);
}

/* ---- GET / ---- */

void route_index(struct request *r)
{
    static const char page[] =
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>dllmd</title>\n"
        "<style>body{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:3em auto}</style>\n"
        "<h1>dllmd " DLLMD_VERSION "</h1>\n"
        "<p>A training service for diffusion language models. This build has no dashboard; the "
        "API is here:</p>\n<ul>\n"
        "<li><a href=\"/v1/jobs\">/v1/jobs</a>: jobs; POST a spec to submit one\n"
        "<li><a href=\"/v1/tasks\">/v1/tasks</a>, <a href=\"/v1/datasets\">/v1/datasets</a>: "
        "preparation and what it made\n"
        "<li><a href=\"/v1/nodes\">/v1/nodes</a>: machines and their slots\n"
        "<li><a href=\"/healthz\">/healthz</a>, <a href=\"/readyz\">/readyz</a>, "
        "<a href=\"/metrics\">/metrics</a>: health and Prometheus\n</ul>\n";
    request_reply_text(r, 200, "text/html; charset=utf-8", strdup(page));
}
