#include "api/routes.h"

const struct route routes[] = {
    {"GET", "/v1/jobs", route_jobs_list},
    {"POST", "/v1/jobs", route_jobs_submit},
    {"GET", "/v1/jobs/{id}", route_job},
    {"POST", "/v1/jobs/{id}/cancel", route_job_cancel},
    {"GET", "/v1/jobs/{id}/metrics", route_job_metrics},
    {"GET", "/v1/jobs/{id}/events", route_job_events},
    {"GET", "/v1/jobs/{id}/logs", route_job_logs},
    {"GET", "/v1/datasets", route_datasets},
    {"GET", "/v1/tasks", route_tasks},
    {"GET", "/v1/tasks/{id}", route_task},
    {"GET", "/v1/nodes", route_nodes},
    {"GET", "/healthz", route_healthz},
    {"GET", "/readyz", route_readyz},
    {"GET", "/metrics", route_prometheus},
    {"GET", "/", route_index},
};
const size_t routes_count = sizeof routes / sizeof routes[0];
