#include "api/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <sodium.h>

#include "api/again.h"
#include "api/doc.h"
#include "api/server.h"
#include "daemon/base/json.h"
#include "daemon/base/utf8.h"

/* ---- Steps ---- */

static void after_step(void *arg, struct err *err)
{
    struct request *r = arg;
    r->stepping = false;
    if (err && r->item.refused) {
        request_reply_problem(r, 503, "busy", NULL, "The daemon is busy; try again in a second.");
        request_header(r, "Retry-After", "1");
        err_free(err);
    } else if (err) {
        request_clear_reply(r);
        request_reply_err(r, err);
    } else if (!r->status && !r->response && r->next) {
        void (*next)(struct request *) = r->next;
        r->next = NULL;
        next(r);
    }
    if (r->stepping)
        return; /* the answer belongs to another thread now */
    r->suspended = false;
    server_resume(r->api, r->connection);
}

/* What was written may be something for the daemon to act on. */
static void after_write(void *arg, struct err *err)
{
    struct request *r = arg;
    if (!err)
        r->control->changed(r->control->user);
    after_step(r, err);
}

static void begin_step(struct request *r)
{
    r->stepping = true;
    if (!r->suspended) {
        r->suspended = true;
        MHD_suspend_connection(r->connection);
    }
}

static struct err *run_work(void *arg)
{
    struct request *r = arg;
    return r->step(r);
}

/* What cannot be answered is not done either: whoever asks again would do it twice. */
static struct err *run_tx(struct store_tx *tx, void *arg)
{
    struct request *r = arg;
    TRY(r->step_tx(tx, r));
    return r->no_memory ? err_no_memory() : NULL;
}

void request_work(struct request *r, struct err *(*fn)(struct request *r))
{
    begin_step(r);
    r->step = fn;
    async_work(r->async, &r->item, run_work, r, after_step);
}

void request_read(struct request *r, struct err *(*fn)(struct store_tx *tx, struct request *r))
{
    begin_step(r);
    r->step_tx = fn;
    async_read(r->async, &r->item, run_tx, r, after_step);
}

void request_write(struct request *r, struct err *(*fn)(struct store_tx *tx, struct request *r))
{
    begin_step(r);
    r->step_tx = fn;
    async_write(r->async, &r->item, run_tx, r, after_write);
}

static struct err *run_once(struct store_tx *tx, struct request *r)
{
    bool found;
    request_clear_reply(r);
    TRY(again_answer(tx, r, &found));
    if (found)
        return NULL;
    TRY(r->once(tx, r));
    return again_keep(tx, r);
}

void request_write_once(struct request *r,
                        struct err *(*fn)(struct store_tx *tx, struct request *r))
{
    r->once = fn;
    request_write(r, run_once);
}

/* ---- Answers ---- */

void request_clear_reply(struct request *r)
{
    free(r->reply);
    r->reply = NULL;
    r->reply_bytes = 0;
    r->status = 0;
    r->no_memory = false;
    for (int i = 0; i < REQUEST_HEADERS; i++) {
        free(r->headers[i].value);
        r->headers[i].value = NULL;
    }
}

void request_free(struct request *r)
{
    if (r->free_state)
        r->free_state(r->state);
    request_clear_reply(r);
    free(r->body);
    free(r->if_match);
    free(r->key);
    free(r);
}

void request_reply_text(struct request *r, int status, const char *type, char *text)
{
    static const char short_of_memory[] =
        "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503,"
        "\"detail\":\"The daemon is short of memory; try again later.\"}\n";
    free(r->reply);
    r->reply = text;
    r->status = status;
    r->reply_type = type;
    if (!text) {
        r->no_memory = true;
        r->status = 503;
        r->reply_type = "application/problem+json";
        r->reply = strdup(short_of_memory);
    }
    r->reply_bytes = r->reply ? strlen(r->reply) : 0;
}

/* Prints with a newline behind it, which a terminal wants. */
static char *print(cJSON *json)
{
    char *text = json_print(json);
    cJSON_Delete(json);
    if (!text)
        return NULL;
    size_t n = strlen(text);
    char *line = realloc(text, n + 2);
    if (!line) {
        free(text);
        return NULL;
    }
    line[n] = '\n';
    line[n + 1] = '\0';
    return line;
}

void request_reply_json(struct request *r, int status, cJSON *json)
{
    request_reply_text(r, status, "application/json", print(json));
}

void request_reply_nothing(struct request *r)
{
    request_reply_text(r, 204, NULL, strdup(""));
}

static const char *phrase(int status)
{
    switch (status) {
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 409:
        return "Conflict";
    case 412:
        return "Precondition Failed";
    case 413:
        return "Content Too Large";
    case 414:
        return "URI Too Long";
    case 415:
        return "Unsupported Media Type";
    case 422:
        return "Unprocessable Content";
    case 429:
        return "Too Many Requests";
    case 503:
        return "Service Unavailable";
    default:
        return "Internal Server Error";
    }
}

void request_reply_problem(struct request *r, int status, const char *type, cJSON *errors,
                           const char *format, ...)
{
    char *detail = NULL, urn[80];
    va_list args;
    va_start(args, format);
    if (vasprintf(&detail, format, args) < 0)
        detail = NULL;
    va_end(args);
    snprintf(urn, sizeof urn, "urn:dllmd:problem:%s", type);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "type", urn);
    cJSON_AddStringToObject(json, "title", phrase(status));
    cJSON_AddNumberToObject(json, "status", status);
    doc_text(json, "detail", detail);
    doc_item(json, "errors", errors);
    free(detail);
    request_reply_text(r, status, "application/problem+json", print(json));
}

void request_reply_err(struct request *r, struct err *err)
{
    static const struct {
        int status;
        const char *type;
    } of_kind[] = {
        [ERR_INVALID] = {422, "invalid"},     [ERR_NOT_FOUND] = {404, "not-found"},
        [ERR_CONFLICT] = {409, "conflict"},   [ERR_IO] = {503, "io"},
        [ERR_NO_MEMORY] = {503, "no-memory"}, [ERR_TIMEOUT] = {503, "timeout"},
        [ERR_ABORTED] = {503, "aborted"},     [ERR_INTERNAL] = {500, "internal"},
    };
    enum err_kind kind = err_kind(err);
    request_reply_problem(r, of_kind[kind].status, of_kind[kind].type, NULL, "%s",
                          err_message(err));
    if (of_kind[kind].status == 503)
        request_header(r, "Retry-After", "5");
    err_free(err);
}

void request_reply_problems(struct request *r, int status, const char *type, const char *what,
                            const struct problems *problems)
{
    if (problems->no_memory) {
        request_reply_err(r, err_no_memory());
        return;
    }
    cJSON *errors = cJSON_CreateArray();
    for (size_t i = 0; i < problems->count; i++) {
        cJSON *item = cJSON_CreateObject();
        doc_text(item, "pointer", problems->items[i].path);
        doc_text(item, "detail", problems->items[i].message);
        doc_push(errors, item);
    }
    size_t count = problems_count(problems);
    if (count == 1 && problems->count == 1)
        request_reply_problem(r, status, type, errors, "%s: %s: %s", what, problems->items[0].path,
                              problems->items[0].message);
    else if (problems->count > 0)
        request_reply_problem(r, status, type, errors,
                              "%s: %zu fields are wrong, all in `errors`; the first is %s: %s",
                              what, count, problems->items[0].path, problems->items[0].message);
    else
        request_reply_problem(r, status, type, errors, "%s", what);
}

void request_header(struct request *r, const char *name, const char *format, ...)
{
    for (int i = 0; i < REQUEST_HEADERS; i++) {
        if (r->headers[i].value && strcmp(r->headers[i].name, name) != 0)
            continue;
        va_list args;
        va_start(args, format);
        free(r->headers[i].value);
        r->headers[i].name = name;
        if (vasprintf(&r->headers[i].value, format, args) < 0) {
            r->headers[i].value = NULL;
            r->no_memory = true;
        }
        va_end(args);
        return;
    }
}

/* ---- Questions ---- */

const char *request_get_header(const struct request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

bool request_integer(const char *text, int64_t least, int64_t most, int64_t *out)
{
    char *end;
    if (text[strspn(text, "-0123456789")])
        return false;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < least || value > most)
        return false;
    *out = value;
    return true;
}

struct query_state {
    const struct parameter *parameters;
    const struct query *queries;
    size_t count;
    unsigned seen;
    struct problems problems;
};

static void query_value(const struct parameter *p, const char *text, void *out,
                        struct problems *problems)
{
    switch (p->type) {
    case QUERY_INTEGER:
        if (!request_integer(text, p->least, p->most, out))
            problems_add(problems, p->name, "must be a whole number from %lld to %lld",
                         (long long)p->least, (long long)p->most);
        break;
    case QUERY_BOOLEAN:
        if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
            *(bool *)out = text[0] == 't';
        else
            problems_add(problems, p->name, "must be true or false");
        break;
    case QUERY_TEXT:
        if ((int64_t)strlen(text) < p->least || (int64_t)strlen(text) > p->most)
            problems_add(problems, p->name, "must have from %lld to %lld bytes",
                         (long long)p->least, (long long)p->most);
        else if (utf8_check(text, strlen(text)) < strlen(text))
            problems_add(problems, p->name, "must be UTF-8");
        else
            *(const char **)out = text;
        break;
    }
}

static void *query_target(const struct query_state *s, const char *name)
{
    for (size_t i = 0; i < s->count; i++)
        if (strcmp(s->queries[i].name, name) == 0)
            return s->queries[i].out;
    return NULL;
}

static enum MHD_Result on_query(void *cls, enum MHD_ValueKind kind, const char *key,
                                const char *value)
{
    (void)kind;
    struct query_state *s = cls;
    const struct parameter *p = s->parameters;
    for (int i = 0; p && p->name; p++, i++) {
        void *out = query_target(s, p->name);
        if (strcmp(p->name, key) != 0 || !out)
            continue;
        if (s->seen & 1u << i)
            problems_add(&s->problems, key, "stands twice");
        else
            query_value(p, value ? value : "", out, &s->problems);
        s->seen |= 1u << i;
        return MHD_YES;
    }
    char known[200] = "";
    for (p = s->parameters; p && p->name; p++) {
        strncat(known, known[0] ? ", " : "", sizeof known - strlen(known) - 1);
        strncat(known, p->name, sizeof known - strlen(known) - 1);
    }
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)utf8_check(key, strnlen(key, 60)), key);
    problems_add(&s->problems, name,
                 known[0] ? "is no parameter here; there are %s"
                          : "is no parameter here; there are none%s",
                 known);
    return MHD_YES;
}

bool request_query(struct request *r, const struct query *queries, size_t count)
{
    struct query_state s = {.parameters = r->route->parameters, .queries = queries, .count = count};
    MHD_get_connection_values(r->connection, MHD_GET_ARGUMENT_KIND, on_query, &s);
    bool good = problems_count(&s.problems) == 0;
    if (s.problems.no_memory) {
        request_reply_err(r, err_no_memory());
    } else if (!good) {
        cJSON *errors = cJSON_CreateArray();
        for (size_t i = 0; i < s.problems.count; i++) {
            cJSON *item = cJSON_CreateObject();
            doc_text(item, "parameter", s.problems.items[i].path);
            doc_text(item, "detail", s.problems.items[i].message);
            doc_push(errors, item);
        }
        if (s.problems.count > 0)
            request_reply_problem(r, 400, "invalid-parameter", errors, "The query is wrong: %s %s.",
                                  s.problems.items[0].path, s.problems.items[0].message);
        else
            request_reply_problem(r, 400, "invalid-parameter", errors, "The query is wrong.");
    }
    problems_free(&s.problems);
    return good;
}

/* ---- ETags ---- */

void request_etag(const char *text, size_t bytes, char out[REQUEST_ETAG_BYTES])
{
    unsigned char hash[crypto_generichash_BYTES_MIN];
    char hex[2 * sizeof hash + 1];
    crypto_generichash(hash, sizeof hash, (const unsigned char *)text, bytes, NULL, 0);
    sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
    snprintf(out, REQUEST_ETAG_BYTES, "\"%s\"", hex);
}

bool request_etag_listed(const char *list, const char *etag, bool weak)
{
    size_t n = strlen(etag);
    while (*list) {
        list += strspn(list, " \t,");
        if (*list == '*')
            return true;
        if (weak && strncmp(list, "W/", 2) == 0)
            list += 2;
        if (strncmp(list, etag, n) == 0 && (list[n] == '\0' || strchr(" \t,", list[n])))
            return true;
        if (*list == '"')
            list += 1 + strcspn(list + 1, "\"");
        list += strcspn(list, ",");
    }
    return false;
}

struct err *request_matches(struct request *r, cJSON *current, bool *out)
{
    char etag[REQUEST_ETAG_BYTES];
    *out = true;
    char *text = print(current);
    if (!text)
        return err_no_memory();
    request_etag(text, strlen(text), etag);
    free(text);
    if (r->if_match && !request_etag_listed(r->if_match, etag, false)) {
        *out = false;
        request_reply_problem(r, 412, "precondition-failed", NULL,
                              "It has changed: If-Match is not its ETag any more.");
        request_header(r, "ETag", "%s", etag);
    }
    return NULL;
}

static bool is_json_type(const char *type)
{
    size_t n = type ? strcspn(type, "; \t") : 0;
    return (n == 16 && strncasecmp(type, "application/json", n) == 0) ||
           (n > 17 && strncasecmp(type, "application/", 12) == 0 &&
            strncasecmp(type + n - 5, "+json", 5) == 0);
}

bool request_json(struct request *r, cJSON **out)
{
    const char *type = request_get_header(r, "Content-Type");
    if (!is_json_type(type)) {
        request_reply_problem(r, 415, "unsupported-media-type", NULL,
                              "The body must be JSON: send Content-Type: application/json, not "
                              "%.100s.",
                              type ? type : "none");
        return false;
    }
    if (!r->body && !(r->body = strdup(""))) {
        request_reply_err(r, err_no_memory());
        return false;
    }
    struct err *err = doc_read_object(r->body, r->body_bytes, "The body", out);
    if (!err)
        return true;
    request_reply_problem(r, err_kind(err) == ERR_INVALID ? 400 : 503, "malformed-json", NULL,
                          "%s.", err_message(err));
    err_free(err);
    return false;
}
