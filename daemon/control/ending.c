/* A process is gone. What it still had to say is in its journal, why it went in its exit file; both
 * are read in the pool, the rest of the journal goes the way of all records (records.c), and then
 * the end of the process is written. When all members of a run have ended, so has the run.
 *
 * Each step that the disk refuses is repeated by the tick. What a process left may never become
 * readable, though, and its job must not hang for that: after some tries its end is judged without,
 * and the history says so.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/meeting.h"
#include "daemon/control/outcome.h"
#include "store/checkpoint_directory.h"
#include "store/events.h"

#define RETRY_MS 1000
#define READ_TRIES 10 /* of what a process left */
#define RECORDS_AT_ONCE 512
#define CHUNK_BYTES ((size_t)2 << 20) /* of the journal at a time; a line has 1 MiB at most */
#define EXIT_BYTES ((size_t)64 << 10)

struct ending {
    struct async_item item;
    struct member *member;
    bool last_try;
    /* read */
    cJSON *records; /* not committed yet */
    int64_t journal_at;
    cJSON *exit; /* the exit file; NULL: there is none */
    int signal;  /* as member.signal */
    /* to be written */
    struct outcome outcome;
    char reason[1100];
};

static void free_ending(struct ending *e)
{
    cJSON_Delete(e->records);
    cJSON_Delete(e->exit);
    free(e);
}

/* ---- Reading (pool) ---- */

static char *path_of(const struct member *m, const char *suffix)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s.%s", m->run->directory, m->name, suffix) < 0 ? NULL : path;
}

/* What is left out shall not look whole: the first reason is kept. */
__attribute__((format(printf, 2, 3))) static void lose(struct member *m, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (!m->lost[0])
        vsnprintf(m->lost, sizeof m->lost, format, args);
    va_end(args);
}

/* Whole lines of a chunk become records; *taken: how many bytes they take. */
static struct err *take_lines(struct ending *e, char *chunk, size_t bytes, size_t *taken)
{
    size_t at = 0;
    char *end;
    while (cJSON_GetArraySize(e->records) < RECORDS_AT_ONCE &&
           (end = memchr(chunk + at, '\n', bytes - at))) {
        cJSON *json = NULL;
        struct json_fault fault;
        size_t length = (size_t)(end - (chunk + at));
        bool good = json_parse_line(chunk + at, length, false, &json, &fault);
        const cJSON *seq = cJSON_GetObjectItemCaseSensitive(json, "seq");
        if (!good && fault.no_memory)
            return err_no_memory();
        bool known = cJSON_IsNumber(seq) && seq->valuedouble <= (double)e->member->committed;
        if (!good)
            lose(e->member, "its journal has a damaged line at byte %lld",
                 (long long)(e->journal_at + (int64_t)at));
        if (!good || known || !cJSON_AddItemToArray(e->records, json))
            cJSON_Delete(json);
        at += length + 1;
    }
    *taken = at;
    return NULL;
}

static struct err *read_journal(struct ending *e)
{
    char *path = path_of(e->member, "journal"), *chunk = malloc(CHUNK_BYTES);
    int fd = path && chunk ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    struct err *err = NULL;
    e->records = cJSON_CreateArray();
    if (!path || !chunk || !e->records)
        err = err_no_memory();
    else if (fd < 0 && errno != ENOENT)
        err = err_errno(errno, "cannot read %s", path);
    for (bool more = fd >= 0; !err && more && cJSON_GetArraySize(e->records) < RECORDS_AT_ONCE;) {
        ssize_t n = pread(fd, chunk, CHUNK_BYTES, e->journal_at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            err = err_errno(errno, "cannot read %s", path);
            break;
        }
        size_t taken = 0;
        err = take_lines(e, chunk, (size_t)n, &taken);
        e->journal_at += (int64_t)taken;
        more = taken > 0; /* else the end, or a line that was never finished */
    }
    if (fd >= 0)
        close(fd);
    free(chunk);
    free(path);
    return err;
}

static struct err *read_exit(struct ending *e)
{
    char *path = path_of(e->member, "exit"), *text = NULL;
    size_t bytes;
    struct err *err = path ? file_read(path, EXIT_BYTES, &text, &bytes) : err_no_memory();
    if (!err)
        err = json_parse(text, bytes, &e->exit);
    if (err && (err_kind(err) == ERR_NOT_FOUND || err_kind(err) == ERR_INVALID)) {
        err_free(err);
        err = NULL;
    }
    free(text);
    free(path);
    return err;
}

/* Takes err. What the last try could not read is not there. */
static struct err *leave_out(struct ending *e, struct err *err)
{
    if (!err || !e->last_try || err_kind(err) == ERR_NO_MEMORY)
        return err;
    lose(e->member, "%s", err_message(err));
    err_free(err);
    return NULL;
}

static struct err *read_remains(void *arg)
{
    struct ending *e = arg;
    struct member *m = e->member;
    char instance[LAUNCH_INSTANCE_BYTES];
    run_instance(m, instance);
    if (m->process.pid == 0) { /* no process: whatever lies there is not its own */
        e->signal = -1;
        launch_ended(m->run->control->launcher, instance); /* but perhaps a unit */
        return NULL;
    }
    TRY(leave_out(e, read_journal(e)));
    if (cJSON_GetArraySize(e->records))
        return NULL;
    e->signal = launch_ended(m->run->control->launcher, instance);
    return leave_out(e, read_exit(e));
}

/* ---- Judging ---- */

static const char *text(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

/* From its exit file, else from its last record, else from the signal. */
static void judge(struct ending *e)
{
    struct member *m = e->member;
    struct outcome *o = &e->outcome;
    const char *status = text(e->exit, "status");
    o->time_s = m->gone_s;
    if (status &&
        (!strcmp(status, "done") || !strcmp(status, "stopped") || !strcmp(status, "error"))) {
        o->status = status;
        o->kind = text(e->exit, "kind");
        o->reason = text(e->exit, "reason");
        if (!o->reason && !strcmp(status, "stopped"))
            o->reason = m->run->stop_reason || m->run->paused ? "stopped as it was told to"
                                                              : "was stopped from outside";
        return;
    }
    if (m->report == REPORT_DONE) {
        o->status = "done";
        return;
    }
    if (m->report == REPORT_ERROR) {
        o->status = "error";
        o->kind = m->error_kind;
        o->reason = m->error_reason;
        return;
    }
    m->run->control->workers_lost++;
    o->status = m->killed ? "stopped" : "killed";
    o->reason = e->reason;
    o->kind = m->signal < 0 && !m->killed ? OUTCOME_UNSEEN : NULL;
    if (m->killed)
        snprintf(e->reason, sizeof e->reason, "was killed, since it did not end when told to");
    else if (m->signal > 0)
        snprintf(e->reason, sizeof e->reason, "was killed by signal %d (%s)", m->signal,
                 strsignal(m->signal));
    else if (m->signal == 0 || !m->unseen)
        snprintf(e->reason, sizeof e->reason,
                 "ended without saying why; its log may tell: %.800s/%s.log", m->run->directory,
                 m->name);
    else
        snprintf(e->reason, sizeof e->reason,
                 "was gone when the daemon came back, and had not said why");
}

/* ---- Writing ---- */

/* What its journal still held is missing in the history, which shall not look whole. */
static struct err *write_lost(struct store_tx *tx, const struct ending *e)
{
    const struct run *r = e->member->run;
    char message[640];
    snprintf(message, sizeof message, "%s was judged without all that it left: %s", e->member->name,
             e->member->lost);
    struct store_event event = {
        .job_id = r->job,
        .attempt = r->attempt,
        .rank = e->member->rank,
        .time_s = e->outcome.time_s,
        .type = "error",
        .message = message,
        .data_json = "{\"kind\":\"io\"}",
    };
    return store_event_insert(tx, &event, NULL);
}

static struct err *write_end(struct store_tx *tx, void *arg)
{
    const struct ending *e = arg;
    const struct run *r = e->member->run;
    const struct outcome *o = &e->outcome;
    if (r->is_task)
        return outcome_of_task(tx, r->task, o, r->control->config->backoff_s);
    if (e->member->lost[0])
        TRY(write_lost(tx, e));
    return store_worker_end(tx, r->job, r->attempt, e->member->rank, o->status, o->kind, o->reason,
                            o->time_s);
}

static void retry(struct member *m, struct err *err, const char *what)
{
    run_log(m->run, m, LOG_LEVEL_WARNING, "%s: %s; trying again", what, err_message(err));
    err_free(err);
    m->retry_ms = uv_now(m->run->control->loop) + RETRY_MS;
}

static void after_end(void *arg, struct err *err)
{
    struct ending *e = arg;
    struct member *m = e->member;
    struct run *r = m->run;
    r->pending--;
    if (err) {
        retry(m, err, "cannot be ended");
        free_ending(e);
        return;
    }
    char why[1300];
    const char *reason = e->outcome.reason;
    snprintf(why, sizeof why, "%s %s%s%s", m->name, e->outcome.status, reason ? ": " : "",
             reason ? reason : "");
    run_log(r, m, LOG_LEVEL_INFO, "%s", why + strlen(m->name) + 1);
    m->state = MEMBER_ENDED;
    if (strcmp(e->outcome.status, "stopped") == 0 && !m->killed)
        run_expect_end(r); /* all ranks have agreed to: the reason is the attempt's, not this one */
    else if (strcmp(e->outcome.status, "done") != 0)
        run_stop(r, why);
    free_ending(e);
    ending_check(r);
}

static void after_remains(void *arg, struct err *err)
{
    struct ending *e = arg;
    struct member *m = e->member;
    m->run->pending--;
    if (err) {
        m->read_tries += err_kind(err) != ERR_NO_MEMORY;
        retry(m, err, "left a journal that cannot be read");
        free_ending(e);
        return;
    }
    m->journal_at = e->journal_at;
    if (cJSON_GetArraySize(e->records)) {
        cJSON *records = e->records;
        e->records = NULL;
        free_ending(e);
        records_replay(m, records);
        return;
    }
    if (m->signal < 0)
        m->signal = e->signal;
    judge(e);
    m->run->pending++;
    async_write(m->run->control->async, &e->item, write_end, e, after_end);
}

void ending_go_on(struct member *m)
{
    struct run *r = m->run;
    if (m->state != MEMBER_GONE || m->batch || r->control->stopping)
        return;
    struct ending *e = calloc(1, sizeof *e);
    if (!e) {
        m->retry_ms = uv_now(r->control->loop) + RETRY_MS;
        return;
    }
    e->member = m;
    e->journal_at = m->journal_at;
    e->last_try = m->read_tries + 1 >= READ_TRIES;
    r->pending++;
    async_work(r->control->async, &e->item, read_remains, e, after_remains);
}

void ending_begin(struct member *m, int signal)
{
    m->state = MEMBER_GONE;
    m->signal = signal;
    m->gone_s = store_now();
    struct line *line = m->line;
    m->line = NULL;
    if (line)
        line_close(line);
    records_forget(m);
    ending_go_on(m);
}

/* ---- The end of the run ---- */

static struct err *write_outcome(struct store_tx *tx, void *arg)
{
    const struct run *r = arg;
    return r->is_task ? NULL
                      : outcome_of_attempt(tx, r->job, r->attempt, r->control->config->backoff_s);
}

/* Nobody writes checkpoints of it any more. */
static struct err *tidy(void *arg)
{
    struct run *r = arg;
    TRY(meeting_remove(r));
    if (r->is_task)
        return NULL;
    char *directory = keeper_directory(r->control, r->job);
    struct err *err = directory ? checkpoint_clean(directory, r->attempt) : err_no_memory();
    free(directory);
    if (err && err_kind(err) == ERR_NOT_FOUND) {
        err_free(err);
        err = NULL;
    }
    return err;
}

static void after_tidy(void *arg, struct err *err)
{
    struct run *r = arg;
    struct control *c = r->control;
    r->pending--;
    if (err)
        log_warning("%s", err_message(err));
    err_free(err);
    run_drop(r);
    scheduler_wake(c);
}

static void after_outcome(void *arg, struct err *err)
{
    struct run *r = arg;
    struct control *c = r->control;
    r->pending--;
    if (err) {
        run_log(r, NULL, LOG_LEVEL_WARNING, "cannot be ended: %s; trying again", err_message(err));
        err_free(err);
        r->finishing = false;
        r->finish_ms = uv_now(c->loop) + RETRY_MS;
        return;
    }
    run_log(r, NULL, LOG_LEVEL_INFO, "has ended");
    r->pending++;
    async_work(c->async, &r->finish_item, tidy, r, after_tidy);
}

/* Whatever it has saved is known now; only then may the next attempt begin. */
static void after_look(void *arg, struct err *err)
{
    struct run *r = arg;
    if (err)
        after_outcome(r, err);
    else
        async_write(r->control->async, &r->finish_item, write_outcome, r, after_outcome);
}

void ending_check(struct run *r)
{
    if (r->pending || r->finishing || r->finish_ms || r->control->stopping)
        return;
    for (int i = 0; i < r->world; i++)
        if (r->members[i].state != MEMBER_ENDED)
            return;
    r->finishing = true;
    r->pending++;
    if (r->is_task)
        after_look(r, NULL);
    else
        keeper_look(r->control, r->job, after_look, r);
}
