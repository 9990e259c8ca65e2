/* Whether the daemon lives and is ready, and its numbers for Prometheus. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/doc.h"
#include "api/routes.h"
#include "api/server.h"
#include "daemon/base/text.h"
#include "store/jobs.h"
#include "store/metrics.h"

void route_healthz(struct request *r)
{
    if (!request_query(r, NULL, 0))
        return;
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
    if (!request_query(r, NULL, 0))
        return;
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

static void head(struct text *out, const char *name, const char *type, const char *help)
{
    text_print(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void number(struct text *out, double value)
{
    if (isnan(value))
        text_add(out, " NaN\n");
    else if (isinf(value))
        text_add(out, value > 0 ? " +Inf\n" : " -Inf\n");
    else
        text_print(out, " %.17g\n", value);
}

static void metric(struct text *out, const char *name, const char *type, const char *help,
                   double value)
{
    head(out, name, type, help);
    text_add(out, name);
    number(out, value);
}

static void label(struct text *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '\n')
            text_add(out, "\\n");
        else if (*text == '"' || *text == '\\')
            text_print(out, "\\%c", *text);
        else
            text_print(out, "%c", *text);
    }
}

/* ---- Jobs that are not over ---- */

#define JOBS_MOST 200 /* the newest; each is six series */

static const struct gauge {
    const char *name, *help;
    const char *key; /* of the job's metrics; NULL: of the job itself */
} gauges[] = {
    {"dllmd_job_step", "Steps that a job has done.", NULL},
    {"dllmd_job_steps", "Steps that a job shall do.", NULL},
    {"dllmd_job_loss", "Training loss of a job's newest step, in nats per token.", "loss"},
    {"dllmd_job_bound", "Newest evaluation of a job, in nats per token.", "bound"},
    {"dllmd_job_learning_rate", "Learning rate of a job's newest step.", "lr"},
    {"dllmd_job_tokens_per_second", "Tokens a second in a job's newest step.", "tokens_per_s"},
};
#define GAUGES (sizeof gauges / sizeof gauges[0])

struct job_figures {
    const struct store_job *job;
    double values[GAUGES];
    bool known[GAUGES];
};

static struct err *read_figures(struct store_tx *tx, const struct store_job *job,
                                struct job_figures *f)
{
    struct store_latest *latest;
    size_t count;
    TRY(store_metrics_latest(tx, job->id, &latest, &count));
    f->job = job;
    f->values[0] = (double)job->step;
    f->values[1] = (double)job->steps;
    f->known[0] = f->known[1] = true;
    for (size_t g = 0; g < GAUGES; g++) {
        for (size_t i = 0; gauges[g].key && i < count; i++) {
            if (strcmp(latest[i].key, gauges[g].key) != 0)
                continue;
            f->values[g] = latest[i].value;
            f->known[g] = true;
        }
    }
    return NULL;
}

/* A metric's lines stand together, so all jobs are read first. */
static struct err *print_jobs(struct store_tx *tx, struct text *out)
{
    struct store_job_filter filter = {.states =
                                          ~STORE_JOB_OVER & (STORE_JOB_MASK(STORE_JOB_STATES) - 1)};
    struct store_page page = {.limit = JOBS_MOST};
    struct store_jobs jobs;
    TRY(store_jobs_list(tx, &filter, &page, &jobs));
    struct job_figures *figures = calloc(jobs.count + 1, sizeof *figures);
    struct err *err = figures ? NULL : err_no_memory();
    for (size_t i = 0; !err && i < jobs.count; i++)
        err = read_figures(tx, &jobs.items[i], &figures[i]);
    for (size_t g = 0; !err && g < GAUGES; g++) {
        head(out, gauges[g].name, "gauge", gauges[g].help);
        for (size_t i = 0; i < jobs.count; i++) {
            if (!figures[i].known[g])
                continue;
            text_print(out, "%s{job_id=\"%lld\",job_name=\"", gauges[g].name,
                       (long long)figures[i].job->id);
            label(out, figures[i].job->name);
            text_add(out, "\"}");
            number(out, figures[i].values[g]);
        }
    }
    free(figures);
    return err;
}

static struct err *read_prometheus(struct store_tx *tx, struct request *r)
{
    struct exposition *e = r->state;
    const struct api_counters *c = &e->counters;
    int64_t counts[STORE_JOB_STATES];
    struct text text = {0}, *out = &text;
    TRY(store_jobs_count(tx, counts));
    head(out, "dllmd_build_info", "gauge", "The version of this daemon.");
    text_print(out, "dllmd_build_info{version=\"%s\"} 1\n", DLLMD_VERSION);
    head(out, "dllmd_jobs", "gauge", "Jobs by state.");
    for (int i = 0; i < STORE_JOB_STATES; i++)
        text_print(out, "dllmd_jobs{state=\"%s\"} %lld\n", store_job_state_name(i),
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
    metric(out, "dllmd_start_time_seconds", "gauge", "Start of the daemon, in seconds since 1970.",
           c->started_s);
    struct err *err = print_jobs(tx, out);
    char *whole = text_take(out);
    if (err)
        free(whole);
    else
        request_reply_text(r, 200, "text/plain; version=0.0.4; charset=utf-8", whole);
    return err;
}

void route_prometheus(struct request *r)
{
    if (!request_query(r, NULL, 0))
        return;
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
