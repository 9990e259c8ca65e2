/* First come, first served, by job: the scheduler looks at the database (survey.c, in the pool),
 * then does what that asks for, then looks again if it was woken meanwhile. There is one pass at a
 * time, so nothing is decided twice; and as every action is a transaction that checks what it
 * expects, a change in between makes it fail and not be wrong.
 *
 * A job's ranks start together or not at all. Who does not fit blocks those behind, so that a large
 * job is not starved by small ones.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/places.h"
#include "daemon/control/survey.h"
#include "store/jobs.h"
#include "store/nodes.h"
#include "store/tasks.h"

#define RETRY_MS 1000
#define GPUS_MOST 64

struct scheduler {
    uv_timer_t timer;
    bool busy;     /* a pass is on */
    bool again;    /* woken meanwhile */
    bool draining; /* this node gets no new work */
    bool retry;    /* something could not be done now */
    int actions;
    struct async_item item;
    struct survey survey;
};

struct action {
    struct async_item item;
    struct control *control;
    struct survey_item what; /* its texts are the action's */
};

static void begin_pass(struct control *c);

static void on_timer(uv_timer_t *timer)
{
    scheduler_wake(timer->data);
}

static void end_pass(struct control *c)
{
    struct scheduler *s = c->scheduler;
    if (s->actions > 0)
        return;
    double wait_ms = s->survey.next_s ? (s->survey.next_s - store_now()) * 1000 : RETRY_MS;
    if (s->retry && wait_ms > RETRY_MS)
        wait_ms = RETRY_MS;
    if (s->retry || s->survey.next_s)
        uv_timer_start(&s->timer, on_timer, wait_ms > 0 ? (uint64_t)ceil(wait_ms) : 1, 0);
    survey_free(&s->survey);
    s->busy = false;
    if (s->again && !c->stopping)
        begin_pass(c);
}

/* ---- Actions that only write ---- */

static struct err *prepare(struct store_tx *tx, const struct survey_item *what)
{
    double now_s = store_now();
    int64_t id;
    struct store_task task = {
        .type = STORE_TASK_PREPARE,
        .parameters_json = what->parameters,
        .job_id = what->id,
    };
    if (what->state == STORE_JOB_MASK(STORE_JOB_QUEUED))
        TRY(store_job_transition(tx, what->id, what->state, STORE_JOB_PREPARING, NULL, now_s));
    return store_task_insert(tx, &task, now_s, &id);
}

static struct err *write_action(struct store_tx *tx, void *arg)
{
    const struct survey_item *what = &((struct action *)arg)->what;
    double now_s = store_now();
    switch (what->action) {
    case SURVEY_PREPARE:
        return prepare(tx, what);
    case SURVEY_AWAIT:
        return store_job_transition(tx, what->id, what->state, STORE_JOB_PREPARING, NULL, now_s);
    case SURVEY_TAKE:
        return store_job_set_dataset(tx, what->id, what->dataset_id, now_s);
    case SURVEY_CANCEL:
        return store_job_transition(tx, what->id, what->state, STORE_JOB_CANCELLED,
                                    "cancelled on request", now_s);
    case SURVEY_HOLD:
        return store_job_transition(tx, what->id, what->state, STORE_JOB_PAUSED,
                                    "paused on request", now_s);
    case SURVEY_FAIL:
        return store_job_transition(tx, what->id, what->state, STORE_JOB_FAILED, what->reason,
                                    now_s);
    case SURVEY_START: /* without room: it queues */
        return store_job_transition(tx, what->id, what->state, STORE_JOB_QUEUED,
                                    "waits for free slots", now_s);
    default:
        return NULL;
    }
}

static void after_action(void *arg, struct err *err)
{
    struct action *a = arg;
    struct control *c = a->control;
    if (err && (a->item.refused || err_kind(err) != ERR_CONFLICT)) {
        log_warning("the scheduler: %s; trying again", err_message(err));
        c->scheduler->retry = true;
    }
    if (!err)
        c->scheduler->again = true;
    err_free(err);
    free(a->what.spec);
    free(a->what.artifact);
    free(a->what.parameters);
    free(a->what.reason);
    free(a);
    c->scheduler->actions--;
    end_pass(c);
}

static void write_it(struct control *c, struct survey_item *item)
{
    struct action *a = calloc(1, sizeof *a);
    if (!a) {
        c->scheduler->retry = true;
        return;
    }
    a->control = c;
    a->what = *item;
    item->spec = item->artifact = item->parameters = item->reason = NULL;
    c->scheduler->actions++;
    async_write(c->async, &a->item, write_action, a, after_action);
}

/* ---- Starting and stopping ---- */

static void after_start(struct control *c, bool later)
{
    if (later)
        c->scheduler->retry = true;
    c->scheduler->actions--;
    end_pass(c);
}

static void start(struct control *c, struct survey_item *item, int64_t gpu)
{
    struct start_request *q = calloc(1, sizeof *q);
    if (!q) {
        c->scheduler->retry = true;
        return;
    }
    q->control = c;
    q->is_task = item->action == SURVEY_START_TASK;
    q->id = item->id;
    q->before = item->before;
    q->world = item->world;
    q->dataset_id = item->dataset_id;
    q->gpu = gpu;
    q->spec = item->spec;
    q->artifact = item->artifact;
    q->parameters = item->parameters;
    item->spec = item->artifact = item->parameters = NULL;
    q->done = after_start;
    c->scheduler->actions++;
    start_run(q);
}

static void stop(struct control *c, bool is_task, int64_t id)
{
    struct run *r = run_find(c, is_task, id);
    if (r)
        run_stop(r, is_task ? "the task was cancelled" : "the job was cancelled");
}

static void pause_job(struct control *c, int64_t id)
{
    struct run *r = run_find(c, false, id);
    if (r)
        run_pause(r);
}

/* What is free on this node. A run on GPUs takes a row of them, one a rank. */
struct room {
    int64_t slots;
    int64_t gpus;
    bool gpu_taken[GPUS_MOST];
};

static void look_for_room(const struct control *c, struct room *room)
{
    *room = (struct room){0};
    if (c->scheduler->draining)
        return;
    *room = (struct room){.slots = c->config->slots, .gpus = c->gpus};
    for (const struct run *r = c->runs; r; r = r->next) {
        if (r->gpu < 0)
            room->slots -= run_slots(r);
        for (int i = 0; r->gpu >= 0 && i < r->world && r->gpu + i < GPUS_MOST; i++)
            room->gpu_taken[r->gpu + i] = true;
    }
}

/* Takes what the item needs. False: there is no room. *gpu: the first, or -1. */
static bool take_room(struct room *room, const struct survey_item *item, int64_t *gpu)
{
    *gpu = -1;
    if (!item->cuda) {
        if (item->world > room->slots)
            return false;
        room->slots -= item->world;
        return true;
    }
    for (int64_t first = 0; first + item->world <= room->gpus; first++) {
        int64_t n = 0;
        while (n < item->world && !room->gpu_taken[first + n])
            n++;
        if (n < item->world)
            continue;
        memset(room->gpu_taken + first, 1, (size_t)n);
        *gpu = first;
        return true;
    }
    return false;
}

static void serve_start(struct control *c, struct survey_item *item, struct room *room,
                        bool *blocked)
{
    int64_t gpu;
    if (run_find(c, item->action == SURVEY_START_TASK, item->id))
        return; /* begun since the survey was made */
    *blocked = *blocked || !take_room(room, item, &gpu);
    if (!*blocked)
        start(c, item, gpu);
    else if (item->state == STORE_JOB_MASK(STORE_JOB_PREPARING))
        write_it(c, item);
}

static void serve(struct control *c)
{
    struct scheduler *s = c->scheduler;
    struct room room;
    bool blocked = false;
    look_for_room(c, &room);
    for (size_t i = 0; i < s->survey.count; i++) {
        struct survey_item *item = &s->survey.items[i];
        switch (item->action) {
        case SURVEY_START:
        case SURVEY_START_TASK:
            serve_start(c, item, &room, &blocked);
            break;
        case SURVEY_STOP:
        case SURVEY_STOP_TASK:
            stop(c, item->action == SURVEY_STOP_TASK, item->id);
            break;
        case SURVEY_PAUSE:
            pause_job(c, item->id);
            break;
        case SURVEY_AWAIT:
            if (item->state == STORE_JOB_MASK(STORE_JOB_QUEUED))
                write_it(c, item);
            break;
        default:
            write_it(c, item);
            break;
        }
    }
}

/* ---- A pass ---- */

static struct err *read_survey(struct store_tx *tx, void *arg)
{
    struct control *c = arg;
    struct store_node node;
    TRY(store_node_get(tx, c->node_id, &node));
    c->scheduler->draining = node.draining;
    return survey_read(tx, c->config, c->gpus, &c->scheduler->survey);
}

static void after_survey(void *arg, struct err *err)
{
    struct control *c = arg;
    struct scheduler *s = c->scheduler;
    s->actions = 1; /* this one: keeps the pass open while actions begin */
    if (err) {
        log_warning("the scheduler cannot look: %s; trying again", err_message(err));
        err_free(err);
        s->retry = true;
    } else if (!c->stopping) {
        serve(c);
    }
    s->actions--;
    end_pass(c);
}

static void begin_pass(struct control *c)
{
    struct scheduler *s = c->scheduler;
    s->busy = true;
    s->again = s->retry = false;
    uv_timer_stop(&s->timer);
    async_read(c->async, &s->item, read_survey, c, after_survey);
}

void scheduler_wake(struct control *c)
{
    struct scheduler *s = c->scheduler;
    if (c->stopping || !c->ready || !places_well(c->places))
        return;
    if (s->busy)
        s->again = true;
    else
        begin_pass(c);
}

struct err *scheduler_open(struct control *c)
{
    c->scheduler = calloc(1, sizeof *c->scheduler);
    if (!c->scheduler)
        return err_no_memory();
    uv_timer_init(c->loop, &c->scheduler->timer);
    c->scheduler->timer.data = c;
    return NULL;
}

static void on_closed(uv_handle_t *handle)
{
    struct scheduler *s = (struct scheduler *)((char *)handle - offsetof(struct scheduler, timer));
    free(s);
}

void scheduler_close(struct control *c)
{
    if (!c->scheduler)
        return;
    survey_free(&c->scheduler->survey);
    uv_close((uv_handle_t *)&c->scheduler->timer, on_closed);
    c->scheduler = NULL;
}
