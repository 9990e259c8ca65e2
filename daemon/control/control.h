/* What the files of the daemon share: the loop, the database, the runs that are alive.
 *
 * A *run* is what is launched together and ends together: the ranks of one attempt of a job, or the
 * one process of a task. Its *members* are the processes. The database says what is true; a run is
 * only the part of it that has descriptors and timers, so a daemon that starts again makes the same
 * runs out of the database (adopt.c) and goes on.
 *
 *   scheduler.c  looks at the database and decides what starts and what stops
 *   start.c      begins a run: rows, secrets, processes
 *   run.c        its life: order to stop, lease, what a tick does
 *   hello.c      a process says who it is; its messages go where they belong
 *   records.c    what a process reports becomes rows
 *   meeting.c    sets of posts that all members wait for
 *   ending.c     a process is gone: the rest of its journal, its exit file, the end of the run
 *   keeper.c     what a job has saved becomes rows; what it does not keep is removed
 *   outcome.c    what the end of a run means for its job or task (pure transactions)
 *
 * All of it happens on the loop thread, but for functions that are handed to async.h.
 */
#ifndef CONTROL_CONTROL_H
#define CONTROL_CONTROL_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "api/api.h"
#include "api/async.h"
#include "daemon/base/log.h"
#include "daemon/control/config.h"
#include "daemon/control/launch.h"
#include "daemon/control/line.h"
#include "daemon/control/secret.h"
#include "store/attempts.h"
#include "store/store.h"

struct run;
struct meeting_sets;
struct batch;
struct scheduler;
struct watchdog;
struct places;

enum member_state {
    MEMBER_LAUNCHING, /* there is no process yet, or it waits for its bootstrap */
    MEMBER_ALIVE,
    MEMBER_GONE,  /* the process is dead, what it left is being read */
    MEMBER_ENDED, /* the database knows */
};

enum member_report { REPORT_NONE, REPORT_DONE, REPORT_ERROR };

struct member {
    struct run *run;
    int rank;      /* 0 of a task */
    char name[24]; /* of its files: "rank-0", "task" */
    enum member_state state;
    enum member_report report; /* its last record, if that came */
    char error_kind[24];       /* of that, if it is an error */
    char error_reason[1024];
    uint8_t secret_hash[STORE_SECRET_HASH_BYTES];
    char secret[SECRET_TEXT_BYTES]; /* until it is told */
    struct launched process;
    uv_poll_t poll; /* of process.pidfd */
    bool polling;
    bool killed; /* SIGKILL was ours */
    bool unseen; /* it was gone when this daemon came */
    struct line *line;
    int64_t committed; /* records */

    /* records on their way to the database */
    cJSON *inbox;
    int inbox_count;
    bool urgent;
    struct batch *batch; /* in flight */

    /* after its death */
    double gone_s;
    int signal;         /* that killed it; 0: exited by itself; -1: not known */
    int64_t journal_at; /* offset of what is still to be read */
    int read_tries;     /* that could not read what it left */
    char lost[512];     /* why a part of that is left out; "": it is not */
    uint64_t retry_ms;  /* loop time; 0: no retry is due */
};

struct run {
    struct control *control;
    struct run *prev, *next;
    bool is_task;
    int64_t job, attempt, task; /* job and attempt, or task */
    char *directory;
    char *spec;       /* resolved, JSON */
    char *artifact;   /* absolute path */
    char *resume;     /* directory of the checkpoint it begins from; NULL: from the beginning */
    char *parameters; /* of a task, JSON */
    int64_t gpu;      /* of rank 0, the others' follow; -1: CPU */
    int world;
    struct member *members; /* [world] */
    struct meeting_sets *sets;

    uv_timer_t tick;
    int open_handles;
    int pending; /* items handed to async.h */
    enum { STOP_NOT, STOP_ORDERED, STOP_TERM, STOP_KILL } stop;
    char *stop_text;         /* owned */
    const char *stop_reason; /* that, or a constant; NULL: none was given */
    bool paused;             /* its ranks are told to save themselves and end */
    uint64_t stop_ms;        /* loop time of the next, harder step */
    uint64_t lease_ms;       /* loop time of the next renewal */
    uint64_t progress_ms;    /* loop time of the last record */
    bool lease_pending, finishing, finished;
    uint64_t finish_ms; /* retry */
    struct async_item lease_item, stop_item, finish_item, launch_item;
};

struct control {
    uv_loop_t *loop;
    const struct config *config;
    struct store *store;
    struct async *async;
    struct api *api;
    struct api_control face;
    struct line_server *lines;
    struct launcher *launcher; /* NULL: the plain way */
    struct watchdog *watchdog; /* NULL: nobody asks for it */
    struct scheduler *scheduler;
    struct places *places;
    struct run *runs;
    char *socket_path;
    uint8_t key[SECRET_KEY_BYTES];
    int64_t node_id;
    int64_t gpus;
    bool ready, stopping;
    char *no_cuda;
    double started_s;
    int64_t workers_started, workers_lost, records;
    uv_signal_t sigterm, sigint;
};

/* ---- run.c ---- */

/* Puts it among the runs and starts its tick. All texts are copied. NULL: no memory. */
struct run *run_create(struct control *c, bool is_task, int64_t id, int64_t attempt, int world);
/* It is no run any more: lines and descriptors are closed, and it is freed when its last handle is.
 * Its processes, if there are any, go on. Nothing may be pending. */
void run_drop(struct run *r);
/* Logs a sentence about it, or about one of its members (may be NULL): the subject, "attempt 1 of
 * job 2", "attempt 1 of job 2: rank-0" or "task 3", a space, and what `format` makes. */
void run_log(const struct run *r, const struct member *m, enum log_level level, const char *format,
             ...) __attribute__((format(printf, 4, 5)));
/* The name of its systemd unit's instance. */
void run_instance(const struct member *m, char out[LAUNCH_INSTANCE_BYTES]);
/* Orders all members to end; harder with time. Again: nothing new. */
void run_stop(struct run *r, const char *reason);
/* Its ranks shall write a checkpoint and end, however long that takes. Again: nothing new. */
void run_pause(struct run *r);
/* Its ranks shall write a checkpoint behind the present step. */
void run_checkpoint_now(struct run *r);
/* A message without fields to one of them, if it is connected. */
void run_order(struct member *m, const char *type);
/* All have said that they are done: those that do not end are ended after the same times. */
void run_expect_end(struct run *r);
/* A member's process is watched from now on. */
struct err *run_watch(struct member *m);
int run_slots(const struct run *r); /* processes that hold one */
struct run *run_find(struct control *c, bool is_task, int64_t id);

/* ---- hello.c ---- */

void hello_message(void *control, struct line *line, const cJSON *message);
void hello_closed(void *control, struct line *line);

/* ---- records.c ---- */

void records_take(struct member *m, const cJSON *record);
/* Writes what waits, unless a batch is in flight. */
void records_flush(struct member *m);
/* Records that are not committed come again, from the worker or its journal. */
void records_forget(struct member *m);
/* An array of records out of the journal of a dead member; taken. ending_go_on() follows. */
void records_replay(struct member *m, cJSON *records);

/* ---- ending.c ---- */

/* The process is gone; `signal` as process_reap() says. */
void ending_begin(struct member *m, int signal);
/* The next step of that: after a batch, or a retry. */
void ending_go_on(struct member *m);
/* If all members have ended: the end of the run is written. */
void ending_check(struct run *r);

/* ---- keeper.c ---- */

/* Where a job's ranks save themselves; freed by the caller. */
char *keeper_directory(const struct control *c, int64_t job);
/* Brings the job's checkpoints on disk and in the database together. done (may be NULL) takes the
 * error; it may come from inside the call where memory is short. */
void keeper_look(struct control *c, int64_t job, void (*done)(void *arg, struct err *err),
                 void *arg);

/* ---- start.c ---- */

/* Of a job that waits, or a queued task. */
struct start_request {
    struct control *control;
    bool is_task;
    int64_t id;     /* of the job or task */
    int64_t before; /* attempts of the job so far; of a task: 0 if it never was started */
    int world;
    int64_t dataset_id;
    char *spec, *artifact, *parameters; /* owned */
    char *resume;                       /* found by start.c */
    int64_t gpu;
    /* The run is begun, or could not be: `later` when it is worth trying again. */
    void (*done)(struct control *c, bool later);
    /* start.c's own */
    struct async_item item;
    struct run *run;
    int64_t attempt;
};
void start_run(struct start_request *request); /* takes it */

/* ---- scheduler.c ---- */

struct err *scheduler_open(struct control *c);
/* The database may hold something to act on. */
void scheduler_wake(struct control *c);
void scheduler_close(struct control *c);

/* ---- adopt.c ---- */

/* At start, before anything else happens: makes the runs that the database says are alive. */
struct err *adopt_runs(struct control *c);

#endif
