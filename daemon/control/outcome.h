/* What the end of processes means for their job or task. Pure transactions: they read what the
 * database knows and write what follows, so a daemon that died in between does the same again. */
#ifndef CONTROL_OUTCOME_H
#define CONTROL_OUTCOME_H

#include "store/attempts.h"
#include "store/store.h"

/* The kind of a death that no daemon saw. */
#define OUTCOME_UNSEEN "unseen"

/* How a process ended. */
struct outcome {
    const char *status; /* "done", "stopped", "error", "killed" */
    const char *kind;   /* of an error; OUTCOME_UNSEEN; or NULL */
    const char *reason; /* a sentence, or NULL */
    double time_s;
};

/* All workers of the attempt have ended: ends it and moves its job on: to succeeded, cancelled,
 * failed, or restarting (not before backoff_s x 2^restarts). */
struct err *outcome_of_attempt(struct store_tx *tx, int64_t job_id, int64_t attempt,
                               double backoff_s);
/* The task's process has ended. A task whose result is there already stays as it is. A preparation
 * that was killed, or that the disk or the memory refused, is queued again as long as its job's
 * restart.max lets it, after the same backoff. */
struct err *outcome_of_task(struct store_tx *tx, int64_t task_id, const struct outcome *outcome,
                            double backoff_s);

#endif
