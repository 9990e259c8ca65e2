/* The history of jobs. Ids grow over all jobs and are never used twice: the Last-Event-ID of SSE.
 *
 * Types: "state" (from, to), "intent", "rewind" (data: {"step": N}: rows beyond step N were
 * superseded), "checkpoint", "worker", "error", or the word of a worker's `event` record. */
#ifndef STORE_EVENTS_H
#define STORE_EVENTS_H

#include "store/store.h"

struct store_event {
    int64_t id;
    int64_t job_id;
    int64_t attempt; /* 0: none */
    int64_t rank;    /* -1: none */
    double time_s;
    const char *type;
    const char *from;      /* state; NULL unless "state" */
    const char *to;        /* likewise */
    const char *message;   /* a sentence, or NULL */
    const char *data_json; /* or NULL */
};

struct store_events {
    struct store_event *items;
    size_t count;
    bool more;
};

/* All but id is read; writes. `id` may be NULL. */
struct err *store_event_insert(struct store_tx *tx, const struct store_event *event, int64_t *id);
/* Oldest first, ids > after_id, of one job or (job_id 0) of all. */
struct err *store_events_list(struct store_tx *tx, int64_t job_id, int64_t after_id, int limit,
                              struct store_events *events);
/* The newest id there is; 0: none. */
struct err *store_events_last(struct store_tx *tx, int64_t *id);

#endif
