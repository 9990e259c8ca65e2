/* Attempts of jobs, and their workers: one row a rank. */
#ifndef STORE_ATTEMPTS_H
#define STORE_ATTEMPTS_H

#include "store/store.h"

#define STORE_SECRET_HASH_BYTES 32

enum store_attempt_state {
    STORE_ATTEMPT_STARTING,
    STORE_ATTEMPT_RUNNING,
    STORE_ATTEMPT_STOPPING, /* told to end, its workers are being waited for */
    STORE_ATTEMPT_ENDED,    /* nothing of it lives, its journals are read: no record counts */
};

enum store_outcome {
    STORE_OUTCOME_NONE, /* not ended */
    STORE_OUTCOME_DONE,
    STORE_OUTCOME_STOPPED, /* on order: cancel, pause, drain */
    STORE_OUTCOME_FAILED,
};

const char *store_attempt_state_name(enum store_attempt_state state);
/* "done", "stopped", "failed"; NULL for none. */
const char *store_outcome_name(enum store_outcome outcome);

struct store_attempt {
    int64_t job_id;
    int64_t number; /* from 1 in each job */
    enum store_attempt_state state;
    enum store_outcome outcome;
    const char *reason;    /* a sentence: why it ended (or is stopping) */
    const char *directory; /* NULL until store_attempt_set_directory */
    int64_t checkpoint_id; /* it began from; 0: from the beginning */
    int64_t start_step;
    double created_s;
    double ended_s;       /* 0: not ended */
    double lease_until_s; /* its workers may live until then without hearing from us; 0: none */
};

struct store_attempts {
    struct store_attempt *items;
    size_t count;
};

/* Begins the next attempt of a job: gives it the next number, and supersedes what lies beyond the
 * point where it starts (start_step of the checkpoint, 0 without one): metrics of later steps are
 * deleted, jobs.step is set back, and a "rewind" event is written if anything was. ERR_CONFLICT
 * while an earlier attempt has not ended. */
struct err *store_attempt_begin(struct store_tx *tx, int64_t job_id, int64_t checkpoint_id,
                                double now_s, struct store_attempt *attempt);
struct err *store_attempt_set_directory(struct store_tx *tx, int64_t job_id, int64_t number,
                                        const char *directory);
struct err *store_attempt_set_lease(struct store_tx *tx, int64_t job_id, int64_t number,
                                    double lease_until_s);
/* starting -> running -> stopping (or starting -> stopping); ERR_CONFLICT otherwise. `reason`
 * NULL keeps the one there is. */
struct err *store_attempt_set_state(struct store_tx *tx, int64_t job_id, int64_t number,
                                    enum store_attempt_state state, const char *reason);
/* Ends it; ERR_CONFLICT while one of its workers has not ended, or when it ended before. */
struct err *store_attempt_end(struct store_tx *tx, int64_t job_id, int64_t number,
                              enum store_outcome outcome, const char *reason, double now_s);
struct err *store_attempt_get(struct store_tx *tx, int64_t job_id, int64_t number,
                              struct store_attempt *attempt);
/* Of a job, the first attempt first. */
struct err *store_attempts_list(struct store_tx *tx, int64_t job_id,
                                struct store_attempts *attempts);
/* Of all jobs, those that have not ended: what a restarted daemon looks for. */
struct err *store_attempts_live(struct store_tx *tx, struct store_attempts *attempts);

enum store_worker_state {
    STORE_WORKER_LAUNCHING, /* the row is there, the process perhaps */
    STORE_WORKER_LAUNCHED,  /* pid and start_time are known */
    STORE_WORKER_RUNNING,   /* it said `started` */
    STORE_WORKER_ENDED,     /* known to be dead */
};

const char *store_worker_state_name(enum store_worker_state state);

struct store_worker {
    int64_t job_id;
    int64_t attempt;
    int64_t rank;
    int64_t node_id;
    int64_t gpu; /* index in its node; -1: none */
    enum store_worker_state state;
    uint8_t secret_hash[STORE_SECRET_HASH_BYTES];
    int64_t pid;             /* 0: not known */
    int64_t start_time;      /* field 22 of /proc/<pid>/stat; 0: not known */
    int64_t last_seq;        /* of the last record committed */
    const char *device;      /* as it says itself; NULL: not yet */
    int64_t threads;         /* likewise; 0 */
    int64_t memory_bytes;    /* planned, likewise; 0 */
    const char *exit_status; /* "done", "stopped", "error", "killed"; NULL: lives */
    const char *exit_kind;   /* of an error: "invalid", "io", …; or NULL */
    const char *reason;      /* a sentence, or NULL */
    double created_s;
    double started_s; /* 0: not yet */
    double ended_s;   /* 0: lives */
};

struct store_workers {
    struct store_worker *items;
    size_t count;
};

/* Reads job_id, attempt, rank, node_id, gpu, secret_hash; writes it as launching. */
struct err *store_worker_insert(struct store_tx *tx, const struct store_worker *worker,
                                double now_s);
struct err *store_worker_launched(struct store_tx *tx, int64_t job_id, int64_t attempt,
                                  int64_t rank, int64_t pid, int64_t start_time);
/* What the record `started` says. */
struct err *store_worker_started(struct store_tx *tx, int64_t job_id, int64_t attempt, int64_t rank,
                                 const char *device, int64_t threads, int64_t memory_bytes,
                                 double now_s);
/* It is known to be dead. Ending it twice keeps the first end. */
struct err *store_worker_end(struct store_tx *tx, int64_t job_id, int64_t attempt, int64_t rank,
                             const char *exit_status, const char *exit_kind, const char *reason,
                             double now_s);
struct err *store_worker_get(struct store_tx *tx, int64_t job_id, int64_t attempt, int64_t rank,
                             struct store_worker *worker);
/* Of one attempt, by rank; of all attempts of the job with attempt 0. */
struct err *store_workers_list(struct store_tx *tx, int64_t job_id, int64_t attempt,
                               struct store_workers *workers);
/* Of all jobs, those that have not ended. */
struct err *store_workers_live(struct store_tx *tx, struct store_workers *workers);

/* What to do with a record of a rank (or a task). */
enum store_verdict {
    STORE_RECORD_NEW,   /* it is the next one and now counts as committed: apply it */
    STORE_RECORD_OLD,   /* committed before: change nothing, acknowledge again */
    STORE_RECORD_GAP,   /* records before it are missing: change nothing, acknowledge last_seq */
    STORE_RECORD_STALE, /* its attempt (task) is over or not the present one: refuse the sender */
};

/* Takes the sequence number of a record. Called first in the write function that applies the
 * record, so both stand or fall together. `last_seq`: committed with this transaction. */
struct err *store_worker_take_record(struct store_tx *tx, int64_t job_id, int64_t attempt,
                                     int64_t rank, int64_t seq, enum store_verdict *verdict,
                                     int64_t *last_seq);

#endif
