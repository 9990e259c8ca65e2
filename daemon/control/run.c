/* The life of a run between its start and its end.
 *
 * One timer, the tick, does everything that is due by time: it writes what waits in the inboxes
 * (so that a quarter second of metrics is one write), renews the lease, takes the next, harder step
 * of a stop, and repeats what the disk refused.
 */
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/meeting.h"
#include "daemon/control/process.h"

#define TICK_MS 250

void run_log(const struct run *r, const struct member *m, enum log_level level, const char *format,
             ...)
{
    struct log_subject subject = {.job = r->job,
                                  .attempt = r->attempt,
                                  .task = r->task,
                                  .rank = m && !r->is_task ? m->rank : -1};
    char text[2048], name[64];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (r->is_task)
        snprintf(name, sizeof name, "task %lld", (long long)r->task);
    else
        snprintf(name, sizeof name, "attempt %lld of job %lld", (long long)r->attempt,
                 (long long)r->job);
    log_about(level, &subject, "%s%s%s %s", name, m ? ": " : "", m ? m->name : "", text);
}

void run_instance(const struct member *m, char out[LAUNCH_INSTANCE_BYTES])
{
    const struct run *r = m->run;
    launch_instance(r->is_task, r->is_task ? r->task : r->job, r->attempt, m->rank, out);
}

static void free_run(struct run *r)
{
    for (int i = 0; r->members && i < r->world; i++)
        cJSON_Delete(r->members[i].inbox);
    meeting_free(r->sets);
    free(r->members);
    free(r->directory);
    free(r->spec);
    free(r->artifact);
    free(r->resume);
    free(r->parameters);
    free(r->stop_text);
    free(r);
}

/* ---- Lease ---- */

static struct err *write_lease(struct store_tx *tx, void *arg)
{
    const struct run *r = arg;
    return store_attempt_set_lease(tx, r->job, r->attempt,
                                   store_now() + r->control->config->lease_s);
}

static void after_lease(void *arg, struct err *err)
{
    struct run *r = arg;
    r->lease_pending = false;
    r->pending--;
    if (err)
        log_warning("a lease is not written: %s", err_message(err));
    err_free(err);
    ending_check(r);
}

static void renew_lease(struct run *r, uint64_t now_ms)
{
    double lease_s = r->control->config->lease_s;
    r->lease_ms = now_ms + (uint64_t)(lease_s * 1000 / 3);
    for (int i = 0; i < r->world; i++) {
        if (!r->members[i].line)
            continue;
        cJSON *json = cJSON_CreateObject();
        cJSON_AddStringToObject(json, "type", "lease");
        cJSON_AddNumberToObject(json, "lease_s", lease_s);
        line_send(r->members[i].line, json);
    }
    if (r->is_task || r->lease_pending || r->finishing)
        return;
    r->lease_pending = true;
    r->pending++;
    async_write(r->control->async, &r->lease_item, write_lease, r, after_lease);
}

/* ---- Stopping ---- */

static struct err *write_stopping(struct store_tx *tx, void *arg)
{
    const struct run *r = arg;
    struct store_attempt attempt;
    TRY(store_attempt_get(tx, r->job, r->attempt, &attempt));
    if (attempt.state >= STORE_ATTEMPT_STOPPING)
        return NULL;
    return store_attempt_set_state(tx, r->job, r->attempt, STORE_ATTEMPT_STOPPING, r->stop_reason);
}

static void after_stopping(void *arg, struct err *err)
{
    struct run *r = arg;
    r->pending--;
    if (err)
        log_warning("a stop is not written: %s", err_message(err));
    err_free(err);
    ending_check(r);
}

static void send_stop(struct line *line, const char *reason)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "type", "stop");
    cJSON_AddStringToObject(json, "reason", reason);
    line_send(line, json);
}

void run_stop(struct run *r, const char *reason)
{
    if (r->stop != STOP_NOT || run_slots(r) == 0)
        return;
    run_log(r, NULL, LOG_LEVEL_INFO, "is told to stop: %s", reason);
    r->stop = STOP_ORDERED;
    r->stop_text = strdup(reason);
    r->stop_reason = r->stop_text ? r->stop_text : "memory was too short to keep the reason";
    r->stop_ms = uv_now(r->control->loop) + (uint64_t)(r->control->config->stop_timeout_s * 1000);
    for (int i = 0; i < r->world; i++)
        if (r->members[i].line)
            send_stop(r->members[i].line, reason);
    if (!r->is_task) {
        r->pending++;
        async_write(r->control->async, &r->stop_item, write_stopping, r, after_stopping);
    }
}

void run_order(struct member *m, const char *type)
{
    if (!m->line)
        return;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "type", type);
    line_send(m->line, json);
}

void run_pause(struct run *r)
{
    if (r->paused || r->stop != STOP_NOT)
        return;
    run_log(r, NULL, LOG_LEVEL_INFO, "is told to pause");
    r->paused = true;
    for (int i = 0; i < r->world; i++)
        run_order(&r->members[i], "pause");
}

void run_checkpoint_now(struct run *r)
{
    for (int i = 0; i < r->world; i++)
        run_order(&r->members[i], "checkpoint_now");
}

void run_expect_end(struct run *r)
{
    if (r->stop != STOP_NOT)
        return;
    r->stop = STOP_ORDERED;
    r->stop_ms = uv_now(r->control->loop) + (uint64_t)(r->control->config->stop_timeout_s * 1000);
}

static void signal_all(struct run *r, int signal)
{
    for (int i = 0; i < r->world; i++) {
        struct member *m = &r->members[i];
        if (m->state != MEMBER_ALIVE || m->process.pidfd < 0)
            continue;
        m->killed = m->killed || signal == SIGKILL;
        char instance[LAUNCH_INSTANCE_BYTES];
        run_instance(m, instance);
        launch_signal(r->control->launcher, r->control->loop, m->process.pidfd, instance, signal);
    }
}

/* Workers that were told to stop, or said their last word, and are still there. */
static void stop_harder(struct run *r, uint64_t now_ms)
{
    const struct config *config = r->control->config;
    if (r->stop == STOP_ORDERED) {
        run_log(r, NULL, LOG_LEVEL_INFO, "does not end by itself: SIGTERM");
        r->stop = STOP_TERM;
        r->stop_ms = now_ms + (uint64_t)(config->term_timeout_s * 1000);
        signal_all(r, SIGTERM);
    } else {
        run_log(r, NULL, LOG_LEVEL_WARNING, "does not end: SIGKILL");
        r->stop = STOP_KILL;
        signal_all(r, SIGKILL);
    }
}

/* Nothing was heard of any rank for too long: hung, or as good as. */
static void stop_stalled(struct run *r)
{
    char reason[128];
    snprintf(reason, sizeof reason, "no rank reported anything for %g s (stall_timeout_s)",
             r->control->config->stall_timeout_s);
    run_stop(r, reason);
}

/* ---- The tick ---- */

static void on_tick(uv_timer_t *timer)
{
    struct run *r = timer->data;
    uint64_t now_ms = uv_now(timer->loop);
    for (int i = 0; i < r->world; i++) {
        struct member *m = &r->members[i];
        if (m->state == MEMBER_ALIVE)
            records_flush(m);
        if (m->retry_ms && now_ms >= m->retry_ms) {
            m->retry_ms = 0;
            ending_go_on(m);
        }
    }
    if (!r->is_task && r->stop == STOP_NOT && run_slots(r) == r->world &&
        now_ms - r->progress_ms > (uint64_t)(r->control->config->stall_timeout_s * 1000))
        stop_stalled(r);
    if (now_ms >= r->lease_ms)
        renew_lease(r, now_ms);
    if (r->stop != STOP_NOT && r->stop != STOP_KILL && now_ms >= r->stop_ms)
        stop_harder(r, now_ms);
    if (r->finish_ms && now_ms >= r->finish_ms) {
        r->finish_ms = 0;
        ending_check(r);
    }
}

/* ---- Life ---- */

struct run *run_create(struct control *c, bool is_task, int64_t id, int64_t attempt, int world)
{
    struct run *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->control = c;
    r->is_task = is_task;
    r->job = is_task ? 0 : id;
    r->task = is_task ? id : 0;
    r->attempt = attempt;
    r->world = world;
    r->gpu = -1;
    r->members = calloc((size_t)world, sizeof *r->members);
    if (!r->members) {
        free(r);
        return NULL;
    }
    for (int i = 0; i < world; i++) {
        struct member *m = &r->members[i];
        m->run = r;
        m->rank = i;
        m->process.pidfd = m->process.bootstrap = -1;
        m->signal = -1;
        if (is_task)
            snprintf(m->name, sizeof m->name, "task");
        else
            snprintf(m->name, sizeof m->name, "rank-%d", i);
    }
    r->next = c->runs;
    if (r->next)
        r->next->prev = r;
    c->runs = r;
    uv_timer_init(c->loop, &r->tick);
    r->tick.data = r;
    r->open_handles = 1;
    r->progress_ms = uv_now(c->loop);
    r->lease_ms = uv_now(c->loop) + (uint64_t)(c->config->lease_s * 1000 / 3);
    uv_timer_start(&r->tick, on_tick, TICK_MS, TICK_MS);
    return r;
}

static void handle_closed(struct run *r)
{
    if (--r->open_handles == 0)
        free_run(r);
}

static void on_tick_closed(uv_handle_t *handle)
{
    handle_closed(handle->data);
}

static void on_poll_closed(uv_handle_t *handle)
{
    struct member *m = handle->data;
    handle_closed(m->run);
}

static void unwatch(struct member *m)
{
    if (m->polling)
        uv_close((uv_handle_t *)&m->poll, on_poll_closed);
    m->polling = false;
    if (m->process.pidfd >= 0)
        close(m->process.pidfd);
    if (m->process.bootstrap >= 0)
        close(m->process.bootstrap);
    m->process.pidfd = m->process.bootstrap = -1;
}

void run_drop(struct run *r)
{
    if (r->prev)
        r->prev->next = r->next;
    else
        r->control->runs = r->next;
    if (r->next)
        r->next->prev = r->prev;
    for (int i = 0; i < r->world; i++) {
        struct line *line = r->members[i].line;
        r->members[i].line = NULL;
        if (line)
            line_close(line);
        unwatch(&r->members[i]);
    }
    uv_close((uv_handle_t *)&r->tick, on_tick_closed);
}

static void on_pidfd(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    struct member *m = poll->data;
    int signal = process_reap(m->process.pidfd);
    unwatch(m);
    ending_begin(m, signal);
}

struct err *run_watch(struct member *m)
{
    int rc = uv_poll_init(m->run->control->loop, &m->poll, m->process.pidfd);
    if (rc == 0) {
        m->poll.data = m;
        m->run->open_handles++;
        m->polling = true;
        rc = uv_poll_start(&m->poll, UV_READABLE, on_pidfd);
    }
    if (rc != 0)
        return err_new(ERR_INTERNAL, "a worker's process cannot be watched: %s", uv_strerror(rc));
    return NULL;
}

int run_slots(const struct run *r)
{
    int slots = 0;
    for (int i = 0; i < r->world; i++)
        slots += r->members[i].state < MEMBER_GONE;
    return slots;
}

struct run *run_find(struct control *c, bool is_task, int64_t id)
{
    for (struct run *r = c->runs; r; r = r->next)
        if (r->is_task == is_task && (is_task ? r->task : r->job) == id)
            return r;
    return NULL;
}
