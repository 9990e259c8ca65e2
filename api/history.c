/* What happened to a job: its events and its workers' logs. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/doc.h"
#include "api/present.h"
#include "api/routes.h"
#include "api/stream.h"
#include "daemon/base/text.h"
#include "daemon/base/utf8.h"

#define EVENTS_DEFAULT 100
#define TAIL_DEFAULT 100
#define TAIL_BYTES ((size_t)256 << 10) /* of one rank's log */

static bool accepts(const struct request *r, const char *type)
{
    const char *accept = request_get_header(r, "Accept");
    return accept && strstr(accept, type);
}

/* ---- GET /v1/jobs/{id}/events ---- */

struct history {
    int64_t after, limit;
};

static struct err *read_history(struct store_tx *tx, struct request *r)
{
    struct history *h = r->state;
    struct store_job job;
    struct store_events events;
    TRY(store_job_get(tx, r->id, &job));
    TRY(store_events_list(tx, r->id, h->after, (int)h->limit, &events));
    cJSON *items = cJSON_CreateArray();
    for (size_t i = 0; i < events.count; i++)
        doc_push(items, present_event(&events.items[i]));
    int64_t last = events.count ? events.items[events.count - 1].id : h->after;
    request_reply_json(r, 200, present_page("events", items, events.more, last));
    return NULL;
}

/* 204 ends a client's attempts to come back: the job is over and it has seen everything. */
static struct err *check_job(struct store_tx *tx, struct request *r)
{
    struct history *h = r->state;
    struct store_job job;
    struct store_events events;
    TRY(store_job_get(tx, r->id, &job));
    TRY(store_events_list(tx, r->id, h->after, 1, &events));
    if ((STORE_JOB_MASK(job.state) & STORE_JOB_OVER) && events.count == 0)
        request_reply_text(r, 204, "text/event-stream", strdup(""));
    return NULL;
}

static void open_stream(struct request *r)
{
    struct history *h = r->state;
    stream_begin(r, r->id, h->after);
}

void route_job_events(struct request *r)
{
    struct history *h = calloc(1, sizeof *h);
    if (!h) {
        request_reply_err(r, err_no_memory());
        return;
    }
    r->state = h;
    r->free_state = free;
    h->limit = EVENTS_DEFAULT;
    const struct query queries[] = {
        {"cursor", &h->after},
        {"limit", &h->limit},
    };
    if (!request_query(r, queries, sizeof queries / sizeof queries[0]))
        return;
    if (!accepts(r, "text/event-stream")) {
        request_read(r, read_history);
        return;
    }
    const char *last = request_get_header(r, "Last-Event-ID");
    if (last && !request_integer(last, 0, INT64_MAX, &h->after)) {
        request_reply_problem(r, 400, "invalid-parameter", NULL,
                              "Last-Event-ID must be the id of an event, a whole number.");
        return;
    }
    r->next = open_stream;
    request_read(r, check_job);
}

/* ---- GET /v1/jobs/{id}/logs ---- */

struct logs {
    int64_t rank, tail, attempt; /* rank -1: all; attempt 0: the newest */
    bool plain;
    /* found in the database */
    int64_t world;
    char *directory;
};

static void free_logs(void *state)
{
    struct logs *l = state;
    free(l->directory);
    free(l);
}

/* The start of the last `lines` lines of a text that may begin in the middle of one. */
static char *last_lines(char *text, size_t bytes, int64_t lines, bool cut)
{
    char *p = text + bytes;
    if (bytes && p[-1] == '\n')
        p--;
    while (p > text) {
        if (p[-1] == '\n' && --lines == 0)
            return p;
        p--;
    }
    if (!cut)
        return text;
    p = memchr(text, '\n', bytes);
    return p ? p + 1 : text;
}

/* The tail of a file as UTF-8 (other bytes become '?'); NULL text: there is no such file. */
static struct err *read_tail(const char *path, int64_t lines, char **out)
{
    *out = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? NULL : err_errno(errno, "cannot open %s", path);
    struct stat st;
    struct err *err = NULL;
    char *text = malloc(TAIL_BYTES + 1);
    if (!text)
        err = err_no_memory();
    else if (fstat(fd, &st) != 0)
        err = err_errno(errno, "cannot read %s", path);
    size_t bytes = 0;
    bool cut = !err && (size_t)st.st_size > TAIL_BYTES;
    off_t from = cut ? st.st_size - (off_t)TAIL_BYTES : 0;
    while (!err && bytes < TAIL_BYTES) {
        ssize_t n = pread(fd, text + bytes, TAIL_BYTES - bytes, from + (off_t)bytes);
        if (n < 0 && errno != EINTR)
            err = err_errno(errno, "cannot read %s", path);
        if (n == 0)
            break;
        if (n > 0)
            bytes += (size_t)n;
    }
    close(fd);
    if (!err) {
        text[bytes] = '\0';
        for (size_t at; (at = utf8_check(text, bytes)) < bytes;)
            text[at] = '?';
        for (size_t i = 0; i < bytes; i++)
            if (text[i] == '\0')
                text[i] = '?';
        char *start = last_lines(text, bytes, lines, cut);
        *out = strdup(start);
        if (!*out)
            err = err_no_memory();
    }
    free(text);
    return err;
}

static struct err *find_logs(struct store_tx *tx, struct request *r)
{
    struct logs *l = r->state;
    struct store_job job;
    struct store_attempt attempt;
    TRY(store_job_get(tx, r->id, &job));
    l->world = job.world;
    if (l->attempt == 0)
        l->attempt = job.attempts;
    if (l->rank >= job.world)
        return err_new(ERR_NOT_FOUND, "job %lld has ranks 0 to %lld, and no rank %lld",
                       (long long)job.id, (long long)job.world - 1, (long long)l->rank);
    if (l->attempt == 0)
        return NULL;
    TRY(store_attempt_get(tx, r->id, l->attempt, &attempt));
    if (attempt.directory && !(l->directory = strdup(attempt.directory)))
        return err_no_memory();
    return NULL;
}

static struct err *read_logs(struct request *r)
{
    struct logs *l = r->state;
    int64_t first = l->rank < 0 ? 0 : l->rank, last = l->rank < 0 ? l->world - 1 : l->rank;
    cJSON *items = cJSON_CreateArray();
    struct text plain = {0};
    struct err *err = NULL;
    for (int64_t rank = first; !err && l->directory && rank <= last; rank++) {
        char *path = NULL, *text = NULL;
        if (asprintf(&path, "%s/rank-%lld.log", l->directory, (long long)rank) < 0)
            err = err_no_memory();
        else
            err = read_tail(path, l->tail, &text);
        if (!err && text && l->plain) {
            if (first != last)
                text_print(&plain, "==> rank %lld <==\n", (long long)rank);
            text_add(&plain, text);
        } else if (!err && text) {
            cJSON *item = doc_push(items, cJSON_CreateObject());
            doc_integer(item, "rank", rank);
            doc_text(item, "text", text);
        }
        free(text);
        if (path)
            free(path);
    }
    char *whole = text_take(&plain);
    if (err || l->plain)
        cJSON_Delete(items);
    if (!err && l->plain)
        request_reply_text(r, 200, "text/plain; charset=utf-8", whole);
    else
        free(whole);
    if (err || l->plain)
        return err;
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "job_id", r->id);
    doc_integer(json, "attempt", l->attempt);
    doc_item(json, "logs", items);
    request_reply_json(r, 200, json);
    return NULL;
}

static void go_on(struct request *r)
{
    request_work(r, read_logs);
}

void route_job_logs(struct request *r)
{
    struct logs *l = calloc(1, sizeof *l);
    if (!l) {
        request_reply_err(r, err_no_memory());
        return;
    }
    r->state = l;
    r->free_state = free_logs;
    l->rank = -1;
    l->tail = TAIL_DEFAULT;
    l->plain = accepts(r, "text/plain");
    const struct query queries[] = {
        {"rank", &l->rank},
        {"tail", &l->tail},
        {"attempt", &l->attempt},
    };
    if (!request_query(r, queries, sizeof queries / sizeof queries[0]))
        return;
    r->next = go_on;
    request_read(r, find_logs);
}
