/* What the database asks for: one look at all jobs and tasks that wait or shall end. */
#ifndef CONTROL_SURVEY_H
#define CONTROL_SURVEY_H

#include "daemon/control/control.h"

enum survey_action {
    SURVEY_START,      /* a job has all it needs but slots */
    SURVEY_START_TASK, /* likewise a task */
    SURVEY_PREPARE,    /* a job needs a dataset, and no task makes it */
    SURVEY_AWAIT,      /* a task makes it */
    SURVEY_TAKE,       /* it is there: dataset_id */
    SURVEY_CANCEL,     /* of a job that does not run */
    SURVEY_FAIL,       /* it cannot be: reason */
    SURVEY_HOLD,       /* of a job that does not run, and shall not */
    SURVEY_STOP,       /* of a job that runs */
    SURVEY_PAUSE,      /* likewise */
    SURVEY_STOP_TASK,
};

struct survey_item {
    enum survey_action action;
    int64_t id;     /* of the job; of the task for SURVEY_START_TASK, SURVEY_STOP_TASK */
    int64_t order;  /* first come, first served: by job */
    int64_t before; /* of SURVEY_START and SURVEY_START_TASK: as in start_request */
    int world;
    bool cuda;
    unsigned state; /* STORE_JOB_MASK of what it is */
    int64_t dataset_id;
    char *spec, *artifact, *parameters, *reason; /* owned */
};

struct survey {
    struct survey_item *items; /* in the order in which they shall be served */
    size_t count, capacity;
    double next_s; /* when a job's backoff is over; 0: none waits */
};

/* In the pool: reads the database and looks at the files that jobs name. */
struct err *survey_read(struct store_tx *tx, const struct config *config, int64_t gpus,
                        struct survey *out);
void survey_free(struct survey *survey);

#endif
