/* The routes and their handlers. */
#ifndef API_ROUTES_H
#define API_ROUTES_H

#include "api/request.h"
#include "api/router.h"

extern const struct route routes[];
extern const size_t routes_count;

/* jobs.c */
void route_jobs_list(struct request *r);
void route_job(struct request *r);
void route_job_metrics(struct request *r);
/* submit.c */
void route_jobs_submit(struct request *r);
/* life.c */
void route_job_cancel(struct request *r);
void route_job_pause(struct request *r);
void route_job_resume(struct request *r);
void route_job_checkpoint(struct request *r);
void route_task_cancel(struct request *r);
/* history.c */
void route_job_events(struct request *r);
void route_job_logs(struct request *r);
/* shelf.c: datasets, tasks, nodes, checkpoints */
void route_datasets(struct request *r);
void route_tasks(struct request *r);
void route_task(struct request *r);
void route_nodes(struct request *r);
void route_job_checkpoints(struct request *r);
/* removal.c */
void route_checkpoint_delete(struct request *r);
void route_dataset_delete(struct request *r);
/* admin.c */
void route_node_drain(struct request *r);
void route_backup(struct request *r);
/* tokens.c */
void route_me(struct request *r);
void route_tokens(struct request *r);
void route_token_create(struct request *r);
void route_token_revoke(struct request *r);
/* health.c */
void route_healthz(struct request *r);
void route_readyz(struct request *r);
void route_prometheus(struct request *r);
/* page.c */
void route_index(struct request *r);
/* openapi.c */
void route_openapi(struct request *r);

#endif
