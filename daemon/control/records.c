/* Records: what a process reports becomes rows, exactly once.
 *
 * Records gather in a member's inbox until the tick, or until one comes that somebody waits for.
 * One batch of a member is in flight at a time: a write function takes each record's number
 * (store_worker_take_record) and applies it in the same transaction, then what was committed is
 * acknowledged. A record that makes no sense is counted, logged and left out, since it would come
 * again for ever; a disk that refuses leaves it uncommitted, and the worker, whose line is closed,
 * sends it again.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/control/control.h"
#include "store/datasets.h"
#include "store/events.h"
#include "store/jobs.h"
#include "store/metrics.h"
#include "store/tasks.h"

#define BATCH_RECORDS 512
#define INBOX_RECORDS 2048 /* more: the line is held until the disk has caught up */
#define METRICS_MOST 64

struct batch {
    struct async_item item;
    struct member *member;
    cJSON *records; /* array */
    bool replay;
    /* set by the write function */
    int64_t committed;
    int64_t count;
    bool saved;             /* there is a checkpoint among them */
    bool gap;               /* a record before one of these never came */
    const cJSON *last_word; /* the record `done` or `error`, in `records`; NULL: none */
};

static const char *text(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static bool number(const cJSON *item, double *out)
{
    static const struct {
        const char *name;
        double value;
    } names[] = {{"nan", NAN}, {"inf", INFINITY}, {"-inf", -INFINITY}};
    if (cJSON_IsNumber(item)) {
        *out = item->valuedouble;
        return true;
    }
    for (int i = 0; cJSON_IsString(item) && i < 3; i++) {
        if (strcmp(item->valuestring, names[i].name) == 0) {
            *out = names[i].value;
            return true;
        }
    }
    return false;
}

static bool whole(const cJSON *json, const char *key, int64_t *out)
{
    double value;
    if (!number(cJSON_GetObjectItemCaseSensitive(json, key), &value) || !(value >= 0) ||
        value > 0x1p53 || value != floor(value))
        return false;
    *out = (int64_t)value;
    return true;
}

static struct err *lacks(const char *what)
{
    return err_new(ERR_INVALID, "it lacks a proper %s", what);
}

static double time_of(const cJSON *record)
{
    double time_s;
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(record, "time");
    return number(item, &time_s) && time_s > 0 && isfinite(time_s) ? time_s : store_now();
}

/* ---- One record of a rank ---- */

static struct err *put_event(struct store_tx *tx, const struct member *m, double time_s,
                             const char *type, const char *message, const char *data)
{
    struct store_event event = {
        .job_id = m->run->job,
        .attempt = m->run->attempt,
        .rank = m->rank,
        .time_s = time_s,
        .type = type,
        .message = message,
        .data_json = data,
    };
    return store_event_insert(tx, &event, NULL);
}

/* With the last rank that has started, the job runs. */
static struct err *apply_started(struct store_tx *tx, const struct member *m, const cJSON *record)
{
    const struct run *r = m->run;
    int64_t threads = 0, memory_bytes = 0;
    double now_s = time_of(record);
    whole(record, "threads", &threads);
    whole(record, "memory_bytes", &memory_bytes);
    TRY(store_worker_started(tx, r->job, r->attempt, m->rank, text(record, "device"), threads,
                             memory_bytes, now_s));
    struct store_workers workers;
    struct store_attempt attempt;
    struct store_job job;
    TRY(store_workers_list(tx, r->job, r->attempt, &workers));
    for (size_t i = 0; i < workers.count; i++)
        if (workers.items[i].started_s == 0)
            return NULL;
    TRY(store_attempt_get(tx, r->job, r->attempt, &attempt));
    TRY(store_job_get(tx, r->job, &job));
    if (attempt.state == STORE_ATTEMPT_STARTING)
        TRY(store_attempt_set_state(tx, r->job, r->attempt, STORE_ATTEMPT_RUNNING, NULL));
    if (job.state != STORE_JOB_STARTING)
        return NULL;
    return store_job_transition(tx, r->job, STORE_JOB_MASK(STORE_JOB_STARTING), STORE_JOB_RUNNING,
                                NULL, now_s);
}

/* `prefix` keeps names apart that steps and evaluations share. */
static struct err *put_metrics(struct store_tx *tx, const struct member *m, const cJSON *record,
                               bool evaluation, int64_t step)
{
    struct store_metric metrics[METRICS_MOST];
    size_t count = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(record, "metrics"))
    {
        double value;
        if (count == METRICS_MOST || !number(item, &value))
            continue;
        const char *key = item->string;
        if (evaluation && strcmp(key, "tokens") == 0)
            key = "evaluation_tokens";
        metrics[count++] = (struct store_metric){.key = key, .value = value};
    }
    return store_metrics_put(tx, m->run->job, step, time_of(record), metrics, count);
}

static struct err *apply_step(struct store_tx *tx, const struct member *m, const cJSON *record)
{
    int64_t step;
    if (!whole(record, "step", &step))
        return lacks("step");
    TRY(put_metrics(tx, m, record, false, step));
    return store_job_progress(tx, m->run->job, step, time_of(record));
}

static struct err *apply_evaluation(struct store_tx *tx, const struct member *m,
                                    const cJSON *record)
{
    int64_t step;
    if (!whole(record, "step", &step))
        return lacks("step");
    return put_metrics(tx, m, record, true, step);
}

static struct err *apply_event(struct store_tx *tx, const struct member *m, const cJSON *record)
{
    const char *event = text(record, "event");
    if (!event || !*event)
        return lacks("event");
    return put_event(tx, m, time_of(record), event, text(record, "message"), NULL);
}

/* The checkpoint is on disk; keeper.c makes a row of it. */
static struct err *apply_checkpoint(struct store_tx *tx, const struct member *m,
                                    const cJSON *record)
{
    int64_t step;
    if (!whole(record, "step", &step))
        return lacks("step");
    return store_job_progress(tx, m->run->job, step, time_of(record));
}

static struct err *apply_error(struct store_tx *tx, const struct member *m, const cJSON *record)
{
    char data[64];
    const char *kind = text(record, "error");
    snprintf(data, sizeof data, "{\"kind\":\"%.32s\"}",
             kind && strcspn(kind, "\"\\") == strlen(kind) ? kind : "internal");
    return put_event(tx, m, time_of(record), "error", text(record, "reason"), data);
}

/* ---- One record of a task ---- */

static struct err *apply_progress(struct store_tx *tx, const struct member *m, const cJSON *record)
{
    int64_t done = 0, total = 0;
    if (!whole(record, "done", &done))
        return lacks("done");
    whole(record, "total", &total);
    return store_task_progress(tx, m->run->task, done, total, text(record, "unit"));
}

/* A prepared artifact becomes a dataset together with the end of its task. */
static struct err *put_dataset(struct store_tx *tx, const struct store_task *task,
                               const cJSON *record)
{
    struct store_dataset dataset = {.path = text(record, "artifact"), .hash = text(record, "hash")};
    cJSON *parameters;
    TRY(json_parse(task->parameters_json, strlen(task->parameters_json), &parameters));
    char *data = json_print(cJSON_GetObjectItemCaseSensitive(parameters, "data"));
    int64_t id;
    struct err *err = NULL;
    number(cJSON_GetObjectItemCaseSensitive(record, "unigram_entropy"), &dataset.unigram_entropy);
    dataset.spec_json = data;
    if (!data)
        err = err_no_memory();
    else if (!dataset.path || !dataset.hash || !whole(record, "documents", &dataset.documents) ||
             !whole(record, "tokens", &dataset.tokens) || !whole(record, "bytes", &dataset.bytes))
        err = lacks("artifact, hash, documents, tokens and bytes");
    if (!err)
        err = store_dataset_put(tx, &dataset, time_of(record), &id);
    if (!err)
        err = store_task_set_dataset(tx, task->id, id);
    free(data);
    cJSON_Delete(parameters);
    return err;
}

static struct err *apply_task_done(struct store_tx *tx, const struct member *m, const cJSON *record)
{
    static const char *const frame[] = {"type", "seq", "time", "kind"};
    struct store_task task;
    TRY(store_task_get(tx, m->run->task, &task));
    cJSON *fields = cJSON_Duplicate(record, true);
    for (int i = 0; i < 4; i++)
        cJSON_DeleteItemFromObjectCaseSensitive(fields, frame[i]);
    char *result = json_print(fields);
    cJSON_Delete(fields);
    struct err *err = result ? NULL : err_no_memory();
    if (!err && task.type == STORE_TASK_PREPARE)
        err = put_dataset(tx, &task, record);
    if (!err)
        err = store_task_transition(tx, task.id, STORE_TASK_MASK(STORE_TASK_RUNNING),
                                    STORE_TASK_SUCCEEDED, result, NULL, time_of(record));
    free(result);
    return err;
}

/* ---- A batch ---- */

static struct err *apply(struct store_tx *tx, struct batch *b, const cJSON *record)
{
    const struct member *m = b->member;
    const char *kind = text(record, "kind");
    const struct {
        const char *kind;
        bool of_task, of_rank;
        struct err *(*apply)(struct store_tx *tx, const struct member *m, const cJSON *record);
    } kinds[] = {
        {"started", false, true, apply_started},       {"step", false, true, apply_step},
        {"evaluation", false, true, apply_evaluation}, {"event", false, true, apply_event},
        {"checkpoint", false, true, apply_checkpoint}, {"error", false, true, apply_error},
        {"progress", true, false, apply_progress},     {"done", true, false, apply_task_done},
    };
    b->saved = b->saved || (kind && strcmp(kind, "checkpoint") == 0);
    if (kind && (strcmp(kind, "error") == 0 || strcmp(kind, "done") == 0))
        b->last_word = record;
    for (size_t i = 0; kind && i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kind, kinds[i].kind) == 0 &&
            (m->run->is_task ? kinds[i].of_task : kinds[i].of_rank))
            return kinds[i].apply(tx, m, record);
    return NULL; /* `started` of a task, `done` of a rank: nothing to keep but their number */
}

/* Whether the record itself is at fault, and not the disk or the memory. */
static bool senseless(const struct err *err)
{
    enum err_kind kind = err_kind(err);
    return kind == ERR_INVALID || kind == ERR_CONFLICT || kind == ERR_NOT_FOUND;
}

static struct err *take(struct store_tx *tx, struct batch *b, int64_t seq,
                        enum store_verdict *verdict)
{
    const struct member *m = b->member;
    const struct run *r = m->run;
    if (r->is_task)
        return store_task_take_record(tx, r->task, seq, verdict, &b->committed);
    return store_worker_take_record(tx, r->job, r->attempt, m->rank, seq, verdict, &b->committed);
}

static struct err *write_batch(struct store_tx *tx, void *arg)
{
    struct batch *b = arg;
    const cJSON *record;
    b->committed = b->member->committed;
    b->count = 0;
    b->gap = false;
    b->last_word = NULL;
    b->saved = false;
    cJSON_ArrayForEach(record, b->records)
    {
        enum store_verdict verdict;
        int64_t seq;
        if (!whole(record, "seq", &seq))
            continue;
        TRY(take(tx, b, seq, &verdict));
        if (verdict == STORE_RECORD_GAP)
            b->gap = true;
        if (verdict != STORE_RECORD_NEW)
            continue;
        b->count++;
        struct err *err = apply(tx, b, record);
        if (err && !senseless(err))
            return err;
        if (err)
            log_warning("record %lld of %s is left out: %s", (long long)seq, b->member->name,
                        err_message(err));
        err_free(err);
    }
    return NULL;
}

static void acknowledge(struct member *m)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "type", "ack");
    cJSON_AddNumberToObject(json, "seq", (double)m->committed);
    line_send(m->line, json);
}

/* The last word of a process: an error ends its run. */
static void take_last_word(struct member *m, const cJSON *record)
{
    struct run *r = m->run;
    if (!record)
        return;
    if (strcmp(text(record, "kind"), "done") == 0) {
        m->report = REPORT_DONE;
        for (int i = 0; i < r->world; i++)
            if (r->members[i].report != REPORT_DONE)
                return;
        run_expect_end(r);
        return;
    }
    const char *kind = text(record, "error"), *reason = text(record, "reason");
    char why[512];
    m->report = REPORT_ERROR;
    snprintf(m->error_kind, sizeof m->error_kind, "%s", kind ? kind : "internal");
    snprintf(m->error_reason, sizeof m->error_reason, "%s", reason ? reason : "it did not say why");
    snprintf(why, sizeof why, "%s failed: %.400s", m->name, m->error_reason);
    run_stop(r, why);
}

static void after_batch(void *arg, struct err *err)
{
    struct batch *b = arg;
    struct member *m = b->member;
    struct run *r = m->run;
    m->batch = NULL;
    r->pending--;
    bool failed = err != NULL;
    if (err) {
        log_warning("records of %s are not written: %s", m->name, err_message(err));
        err_free(err);
        records_forget(m);
        if (m->line)
            line_close(m->line);
    } else {
        m->committed = b->committed;
        r->control->records += b->count;
        if (m->line)
            acknowledge(m);
        if (m->line && b->gap)
            line_close(m->line); /* it comes again and sends all after what was acknowledged */
        if (m->line)
            line_hold(m->line, false);
        if (b->count)
            r->progress_ms = uv_now(r->control->loop);
        if (b->saved)
            keeper_look(r->control, r->job, NULL, NULL);
        take_last_word(m, b->last_word);
    }
    if (b->replay && failed)
        m->journal_at = 0; /* from the beginning: what is committed is skipped */
    cJSON_Delete(b->records);
    free(b);
    if (m->state == MEMBER_GONE) {
        if (failed)
            m->retry_ms = uv_now(r->control->loop) + 1000;
        else
            ending_go_on(m);
    } else if (m->urgent) {
        records_flush(m);
    }
    ending_check(r);
}

static void send_batch(struct member *m, cJSON *records, bool replay)
{
    struct batch *b = calloc(1, sizeof *b);
    if (!b) {
        cJSON_Delete(records);
        if (m->line)
            line_close(m->line);
        if (replay) {
            m->journal_at = 0; /* from the beginning: what is committed is skipped */
            m->retry_ms = uv_now(m->run->control->loop) + 1000;
        }
        return;
    }
    b->member = m;
    b->records = records;
    b->replay = replay;
    m->batch = b;
    m->run->pending++;
    async_write(m->run->control->async, &b->item, write_batch, b, after_batch);
}

void records_flush(struct member *m)
{
    if (m->batch || !m->inbox_count)
        return;
    cJSON *records = m->inbox;
    m->inbox = NULL;
    m->inbox_count = 0;
    m->urgent = false;
    send_batch(m, records, false);
}

void records_replay(struct member *m, cJSON *records)
{
    send_batch(m, records, true);
}

void records_forget(struct member *m)
{
    cJSON_Delete(m->inbox);
    m->inbox = NULL;
    m->inbox_count = 0;
    m->urgent = false;
}

void records_take(struct member *m, const cJSON *record)
{
    const char *kind = text(record, "kind");
    cJSON *copy = cJSON_Duplicate(record, true);
    if (!m->inbox)
        m->inbox = cJSON_CreateArray();
    if (!copy || !cJSON_AddItemToArray(m->inbox, copy)) {
        cJSON_Delete(copy);
        line_close(m->line); /* it sends it again when there is memory */
        return;
    }
    m->inbox_count++;
    bool frequent = kind && (strcmp(kind, "step") == 0 || strcmp(kind, "progress") == 0);
    m->urgent = m->urgent || !frequent || m->inbox_count >= BATCH_RECORDS;
    if (m->urgent)
        records_flush(m);
    if (m->inbox_count >= INBOX_RECORDS)
        line_hold(m->line, true);
}
