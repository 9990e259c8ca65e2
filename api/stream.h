/* Server-sent events: the history of a job that stays open. */
#ifndef API_STREAM_H
#define API_STREAM_H

#include "api/server.h"

struct request;

/* Answers with the events of a job (or, job 0, of all) after `after_id` and those to come. A job
 * that is over ends its stream. */
void stream_begin(struct request *r, int64_t job_id, int64_t after_id);
/* Something was committed. */
void stream_wake(struct api *api);
/* All streams end; clients come back with Last-Event-ID. */
void stream_end(struct api *api);
void stream_heartbeat_start(struct api *api);

#endif
