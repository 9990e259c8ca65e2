/* Tasks: preparation, export and so on, each one process. */
#ifndef STORE_TASKS_H
#define STORE_TASKS_H

#include "store/attempts.h"
#include "store/jobs.h"
#include "store/store.h"

enum store_task_type {
    STORE_TASK_PREPARE,
    STORE_TASK_EXPORT,
    STORE_TASK_SAMPLE,
    STORE_TASK_ACCEPTANCE,
    STORE_TASK_FEATURES,
    STORE_TASK_TYPES,
};

/* queued -> running -> succeeded | failed | cancelled; running -> queued when its process is gone
 * and it shall be tried again; queued -> failed | cancelled. */
enum store_task_state {
    STORE_TASK_QUEUED,
    STORE_TASK_RUNNING,
    STORE_TASK_SUCCEEDED,
    STORE_TASK_FAILED,
    STORE_TASK_CANCELLED,
    STORE_TASK_STATES,
};

#define STORE_TASK_MASK(state) (1u << (state))
#define STORE_TASK_OVER                                                                            \
    (STORE_TASK_MASK(STORE_TASK_SUCCEEDED) | STORE_TASK_MASK(STORE_TASK_FAILED) |                  \
     STORE_TASK_MASK(STORE_TASK_CANCELLED))

const char *store_task_type_name(enum store_task_type type);
bool store_task_type_parse(const char *name, enum store_task_type *type);
const char *store_task_state_name(enum store_task_state state);
bool store_task_state_parse(const char *name, enum store_task_state *state);

struct store_task {
    int64_t id;
    enum store_task_type type;
    enum store_task_state state;
    bool cancel_requested;
    const char *parameters_json;
    const char *result_json; /* NULL until succeeded */
    const char *reason;      /* a sentence, or NULL */
    int64_t job_id;          /* for which job; 0: none */
    int64_t checkpoint_id;   /* on which checkpoint; 0: none */
    int64_t dataset_id;      /* it made; 0: none */
    int64_t done, total;     /* progress; total 0: not known */
    const char *unit;        /* of progress, or NULL */
    const char *created_by;
    double created_s, started_s, finished_s; /* 0: not yet */
    int64_t version;                         /* the ETag */
    /* Its process, as of a worker. */
    int64_t node_id; /* 0: none yet */
    int64_t gpu;     /* -1: none */
    int64_t pid, start_time, last_seq;
    uint8_t secret_hash[STORE_SECRET_HASH_BYTES];
    const char *directory; /* or NULL */
};

struct store_task_filter {
    unsigned states;       /* of STORE_TASK_MASK; 0: all */
    unsigned types;        /* 1u << type; 0: all */
    int64_t job_id;        /* 0: all */
    int64_t checkpoint_id; /* 0: all */
};

struct store_tasks {
    struct store_task *items;
    size_t count;
    bool more;
};

/* Reads type, parameters_json, job_id, checkpoint_id, created_by; writes it as queued. */
struct err *store_task_insert(struct store_tx *tx, const struct store_task *task, double now_s,
                              int64_t *id);
struct err *store_task_get(struct store_tx *tx, int64_t id, struct store_task *task);
struct err *store_tasks_list(struct store_tx *tx, const struct store_task_filter *filter,
                             const struct store_page *page, struct store_tasks *tasks);
/* queued -> running: a process is about to be launched. Its records count from seq 1. */
struct err *store_task_start(struct store_tx *tx, int64_t id, int64_t node_id, int64_t gpu,
                             const uint8_t secret_hash[STORE_SECRET_HASH_BYTES],
                             const char *directory, double now_s);
struct err *store_task_launched(struct store_tx *tx, int64_t id, int64_t pid, int64_t start_time);
struct err *store_task_progress(struct store_tx *tx, int64_t id, int64_t done, int64_t total,
                                const char *unit);
struct err *store_task_set_dataset(struct store_tx *tx, int64_t id, int64_t dataset_id);
/* ERR_CONFLICT names the present state when it is not among `from` (0: any) or the move is not
 * legal. `result_json` and `reason` may be NULL. Not for `running`: store_task_start does that. */
struct err *store_task_transition(struct store_tx *tx, int64_t id, unsigned from,
                                  enum store_task_state to, const char *result_json,
                                  const char *reason, double now_s);
/* A queued task is cancelled at once, a running one gets cancel_requested. ERR_CONFLICT when it is
 * over. */
struct err *store_task_cancel(struct store_tx *tx, int64_t id, const char *reason, double now_s);
/* As store_worker_take_record; stale when the task is not running. */
struct err *store_task_take_record(struct store_tx *tx, int64_t id, int64_t seq,
                                   enum store_verdict *verdict, int64_t *last_seq);

#endif
