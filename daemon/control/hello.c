/* A process that connects says who it is; from then on its messages go where they belong. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/doc.h"
#include "daemon/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/meeting.h"
#include "daemon/control/process.h"

#define VERSION 1

/* A whole number from 0 to 2^53, or -1. */
static int64_t number(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    if (!cJSON_IsNumber(item) || item->valuedouble < 0 || item->valuedouble > 0x1p53 ||
        item->valuedouble != floor(item->valuedouble))
        return -1;
    return (int64_t)item->valuedouble;
}

static const char *text(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static void refuse(struct line *line, const char *reason)
{
    log_warning("process %d is refused: %s", (int)line_peer(line), reason);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "type", "refused");
    cJSON_AddStringToObject(json, "reason", reason);
    line_send(line, json);
    line_close(line);
}

/* The member that a hello speaks of; NULL: refused. */
static struct member *find(struct control *c, struct line *line, const cJSON *hello)
{
    char reason[128];
    bool is_task = cJSON_HasObjectItem(hello, "task");
    int64_t id = number(hello, is_task ? "task" : "job");
    int64_t attempt = is_task ? 0 : number(hello, "attempt");
    int64_t rank = is_task ? 0 : number(hello, "rank");
    const char *secret = text(hello, "secret");
    if (number(hello, "v") != VERSION) {
        refuse(line, "this daemon speaks version 1 of the protocol");
        return NULL;
    }
    struct run *r = id > 0 ? run_find(c, is_task, id) : NULL;
    if (!r || r->finishing) {
        snprintf(reason, sizeof reason, "%s %lld is not running", is_task ? "task" : "job",
                 (long long)id);
        refuse(line, reason);
        return NULL;
    }
    if (attempt != r->attempt) {
        snprintf(reason, sizeof reason,
                 "attempt %lld of job %lld is over: attempt %lld has started", (long long)attempt,
                 (long long)id, (long long)r->attempt);
        refuse(line, reason);
        return NULL;
    }
    if (rank < 0 || rank >= r->world || !secret ||
        !secret_matches(c->key, secret, r->members[rank].secret_hash)) {
        refuse(line, "the secret is wrong");
        return NULL;
    }
    return &r->members[rank];
}

/* `now`: the start time of the process that has that pid. */
static bool same_process(const struct member *m, const struct line *line, const cJSON *hello,
                         uint64_t now)
{
    return m->state == MEMBER_ALIVE && line_peer(line) == m->process.pid &&
           number(hello, "pid") == m->process.pid &&
           (uint64_t)number(hello, "start_time") == m->process.start_time &&
           now == m->process.start_time;
}

static void welcome(struct member *m)
{
    const struct run *r = m->run;
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "type", "welcome");
    cJSON_AddNumberToObject(json, "acked", (double)m->committed);
    cJSON_AddNumberToObject(json, "lease_s", r->control->config->lease_s);
    if (r->is_task) {
        cJSON_AddRawToObject(json, "task", r->parameters);
    } else {
        cJSON_AddNumberToObject(json, "world", r->world);
        cJSON_AddRawToObject(json, "spec", r->spec);
        cJSON_AddStringToObject(json, "artifact", r->artifact);
        const struct config *config = r->control->config;
        doc_item(
            json, "roots",
            cJSON_CreateStringArray((const char *const *)config->roots, (int)config->root_count));
        if (r->resume)
            cJSON_AddStringToObject(json, "resume", r->resume);
        char *checkpoints = keeper_directory(r->control, r->job);
        if (!checkpoints) {
            cJSON_Delete(json);
            json = NULL; /* the line is closed, and it comes again */
        }
        cJSON_AddStringToObject(json, "checkpoints", checkpoints);
        free(checkpoints);
    }
    line_send(m->line, json);
    if (m->line && r->paused)
        run_order(m, "pause");
    if (m->line && r->stop_reason) {
        cJSON *stop = cJSON_CreateObject();
        cJSON_AddStringToObject(stop, "type", "stop");
        cJSON_AddStringToObject(stop, "reason", r->stop_reason);
        line_send(m->line, stop);
    }
}

static void take_hello(struct control *c, struct line *line, const cJSON *hello)
{
    struct member *m = find(c, line, hello);
    if (!m)
        return;
    uint64_t now = process_start_time(m->process.pid);
    if (!now && errno != ESRCH) {
        log_warning("process %d cannot be looked at: %s", (int)m->process.pid, strerror(errno));
        line_close(line); /* it comes again */
        return;
    }
    if (!same_process(m, line, hello, now)) {
        refuse(line, "this is not the process that was started");
        return;
    }
    if (m->line) { /* its old connection, of which it knows that it is dead */
        struct line *old = m->line;
        m->line = NULL;
        line_close(old);
    }
    records_forget(m); /* they come again, after `acked` */
    m->line = line;
    line_accepted(line, m);
    welcome(m);
}

void hello_message(void *control, struct line *line, const cJSON *message)
{
    struct control *c = control;
    struct member *m = line_owner(line);
    const char *type = text(message, "type");
    if (!m) {
        if (type && strcmp(type, "hello") == 0)
            take_hello(c, line, message);
        else
            refuse(line, "the first message must be hello");
        return;
    }
    if (type && strcmp(type, "record") == 0)
        records_take(m, message);
    else if (type && strcmp(type, "exchange") == 0)
        meeting_post(m, message);
    else
        log_warning("%s sent a message of the unknown type %.32s", m->name, type ? type : "(none)");
}

void hello_closed(void *control, struct line *line)
{
    (void)control;
    struct member *m = line_owner(line);
    if (m && m->line == line)
        m->line = NULL;
}
