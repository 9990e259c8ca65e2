/* Rows of the database as JSON. NULL when memory is short. */
#ifndef API_PRESENT_H
#define API_PRESENT_H

#include <cjson/cJSON.h>

#include "store/attempts.h"
#include "store/checkpoints.h"
#include "store/datasets.h"
#include "store/events.h"
#include "store/jobs.h"
#include "store/nodes.h"
#include "store/tasks.h"

cJSON *present_job(const struct store_job *job); /* as lists show it: without the spec */
/* With its spec, attempts, workers and latest metrics, read in `tx`. */
struct err *present_job_whole(struct store_tx *tx, int64_t id, cJSON **out);
cJSON *present_event(const struct store_event *event);
cJSON *present_task(const struct store_task *task);
cJSON *present_dataset(const struct store_dataset *dataset);
cJSON *present_checkpoint(const struct store_checkpoint *checkpoint);
cJSON *present_node(const struct store_node *node);

/* {"<key>": items, "next_cursor": "..." or null}; takes items. */
cJSON *present_page(const char *key, cJSON *items, bool more, int64_t last_id);

#endif
