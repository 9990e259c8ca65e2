/* A job's other parallelism: on how many ranks, and in which mode, it goes on. */
#ifndef API_RESHAPE_H
#define API_RESHAPE_H

#include "api/request.h"
#include "store/jobs.h"

/* Of a body {"parallel": {...}} to a job of which nothing runs: its spec has that parallelism from
 * now on. In a write function. *answered: something is wrong, and the answer says what. */
struct err *reshape(struct store_tx *tx, struct request *r, const struct store_job *job,
                    bool *answered);

#endif
