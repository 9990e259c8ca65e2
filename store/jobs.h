/* Jobs and their state machine. */
#ifndef STORE_JOBS_H
#define STORE_JOBS_H

#include "store/store.h"

enum store_job_state {
    STORE_JOB_QUEUED,
    STORE_JOB_PREPARING,  /* its dataset is being made */
    STORE_JOB_STARTING,   /* workers are launched and meet */
    STORE_JOB_RUNNING,    /* they train */
    STORE_JOB_RESTARTING, /* an attempt is over, the next one waits */
    STORE_JOB_PAUSED,
    STORE_JOB_SUCCEEDED,
    STORE_JOB_FAILED,
    STORE_JOB_CANCELLED,
    STORE_JOB_STATES,
};

#define STORE_JOB_MASK(state) (1u << (state))
/* States that end a job. */
#define STORE_JOB_OVER                                                                             \
    (STORE_JOB_MASK(STORE_JOB_SUCCEEDED) | STORE_JOB_MASK(STORE_JOB_FAILED) |                      \
     STORE_JOB_MASK(STORE_JOB_CANCELLED))
/* States that hold slots. */
#define STORE_JOB_ACTIVE (STORE_JOB_MASK(STORE_JOB_STARTING) | STORE_JOB_MASK(STORE_JOB_RUNNING))

/* What its owner asked for last; control brings the state there. */
enum store_intent { STORE_INTENT_RUN, STORE_INTENT_PAUSE, STORE_INTENT_CANCEL };

const char *store_job_state_name(enum store_job_state state);
/* False when the name is none. */
bool store_job_state_parse(const char *name, enum store_job_state *state);
const char *store_intent_name(enum store_intent intent);
bool store_job_transition_legal(enum store_job_state from, enum store_job_state to);

struct store_job {
    int64_t id;
    const char *name;
    enum store_job_state state;
    enum store_intent intent;
    const char *reason;     /* a sentence: why it is in this state; NULL: nothing to say */
    const char *spec_json;  /* resolved */
    const char *device;     /* resolved: "cpu" or "cuda" */
    int64_t world;          /* ranks */
    int64_t steps;          /* to do */
    int64_t step;           /* done */
    int64_t attempts;       /* begun so far; the number of the present one */
    int64_t restarts;       /* that restart.max counts */
    int64_t dataset_id;     /* 0: not known yet */
    const char *created_by; /* name of the token; NULL: no tokens in use */
    double created_s;
    double updated_s;    /* of `version` */
    double started_s;    /* first running; 0: never */
    double finished_s;   /* 0: not over */
    double progress_s;   /* last step, checkpoint or record that counts as progress; 0: none */
    double not_before_s; /* backoff: no attempt before; 0: at once */
    int64_t version;     /* grows with each change of the row, progress included: the ETag */
};

struct store_jobs {
    struct store_job *items;
    size_t count;
    bool more; /* there is a next page: its cursor is the last item's id */
};

/* Reads name, spec_json, device, world, steps, created_by; writes the job as queued and its first
 * event at time now_s. */
struct err *store_job_insert(struct store_tx *tx, const struct store_job *job, double now_s,
                             int64_t *id);
struct err *store_job_get(struct store_tx *tx, int64_t id, struct store_job *job);

struct store_job_filter {
    unsigned states;       /* of STORE_JOB_MASK; 0: all */
    const char *name;      /* exactly; NULL: all */
    double created_from_s; /* >=; 0: no bound */
    double created_to_s;   /* <; 0: no bound */
};
/* `filter` may be NULL. */
struct err *store_jobs_list(struct store_tx *tx, const struct store_job_filter *filter,
                            const struct store_page *page, struct store_jobs *jobs);
/* counts[state]: how many jobs are in it. */
struct err *store_jobs_count(struct store_tx *tx, int64_t counts[STORE_JOB_STATES]);

/* Writes the new state, its reason (NULL clears it) and a "state" event in one. `from` is a set of
 * STORE_JOB_MASK that the caller expects, 0: any. ERR_CONFLICT names the present state when it is
 * not among `from` or the move is not legal. Entering running sets started_s once, ending sets
 * finished_s; queued and starting clear finished_s and not_before_s. */
struct err *store_job_transition(struct store_tx *tx, int64_t id, unsigned from,
                                 enum store_job_state to, const char *reason, double now_s);
/* Writes what the owner asked for, and an "intent" event when it changed. ERR_CONFLICT when the
 * job is over, or when a cancelled job shall go on. */
struct err *store_job_set_intent(struct store_tx *tx, int64_t id, enum store_intent intent,
                                 double now_s);
struct err *store_job_set_dataset(struct store_tx *tx, int64_t id, int64_t dataset_id,
                                  double now_s);
/* Another resolved spec, of so many ranks, and a "spec" event. */
struct err *store_job_set_spec(struct store_tx *tx, int64_t id, const char *spec_json,
                               int64_t world, double now_s);
/* Sets restarts and not_before_s. */
struct err *store_job_set_restarts(struct store_tx *tx, int64_t id, int64_t restarts,
                                   double not_before_s, double now_s);
/* Progress: `step` updates are done (kept if smaller than what is known), at now_s. */
struct err *store_job_progress(struct store_tx *tx, int64_t id, int64_t step, double now_s);

#endif
