/* Metrics: (job, key, step) -> a double. Values that are not finite survive.
 *
 * A key is a name of the caller's; keys of different records share one space, so a name that both
 * `step` and `evaluation` use (`tokens`) is made different by the caller (`evaluation_tokens`).
 * "time" is written by the store: the time of the first record of the step. */
#ifndef STORE_METRICS_H
#define STORE_METRICS_H

#include "store/store.h"

#define STORE_METRIC_KEY_BYTES 64 /* of a key at most: [A-Za-z0-9_.-], one or more */

struct store_metric {
    const char *key;
    double value;
};

/* Writes the values of a step (>= 0); a value that is there already is replaced. ERR_INVALID for a
 * bad key, naming it. */
struct err *store_metrics_put(struct store_tx *tx, int64_t job_id, int64_t step, double time_s,
                              const struct store_metric *metrics, size_t count);

/* The names of the keys that a job has values of, sorted. */
struct err *store_metrics_keys(struct store_tx *tx, int64_t job_id, const char *const **keys,
                               size_t *count);

struct store_series {
    int64_t *steps; /* ascending */
    double *values;
    size_t count;
    size_t total; /* values in the range before downsampling */
    bool sampled; /* count < total */
};

/* Steps from <= step <= to. When there are more than `points` (0: no bound; below 8 counts as 8),
 * the range is cut into equal buckets, and of each the minimum, the maximum and, if there is one,
 * the first NaN stay, besides the first and the last value of all; they are real points, never
 * means. A key that the job does not have gives an empty series. */
struct err *store_metrics_series(struct store_tx *tx, int64_t job_id, const char *key, int64_t from,
                                 int64_t to, size_t points, struct store_series *series);

struct store_latest {
    const char *key;
    int64_t step;
    double value;
};
/* The value of the largest step of each key, sorted by key. */
struct err *store_metrics_latest(struct store_tx *tx, int64_t job_id, struct store_latest **latest,
                                 size_t *count);

#endif
