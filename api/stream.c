/* Server-sent events.
 *
 * A stream knows the last event id that it has read. Whenever something is committed, each stream
 * that is not reading already reads what lies beyond that id in the pool and puts it into its own
 * bounded buffer, from which MHD takes it. With an empty buffer the connection is suspended. A
 * client that takes so little that the buffer fills is dropped: it comes back with Last-Event-ID
 * and misses nothing, since the history is the database's.
 */
#include "api/stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/present.h"
#include "api/request.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/base/text.h"

#define STREAMS_MOST 64
#define BUFFER_MOST ((size_t)256 << 10)
#define EVENTS_AT_ONCE 100
#define HEARTBEAT_MS 15000
#define RETRY_MS 2000 /* after which a client whose stream ended comes back */

struct stream {
    struct api *api;
    struct stream *prev, *next;
    struct MHD_Connection *connection;
    int64_t job_id, last_id;
    char *buffer;
    size_t begin, bytes, capacity; /* what is to be sent: buffer[begin .. begin + bytes) */
    bool suspended;
    bool ended;   /* nothing more comes; the connection closes when the buffer is empty */
    bool reading; /* in the pool */
    bool again;   /* something was committed meanwhile */
    bool gone;    /* the connection is closed; freed when the read is back */

    /* of the read */
    struct async_item item;
    char *text; /* as it goes over the wire */
    int64_t text_last_id;
    bool text_more, job_over;
};

static void free_stream(struct stream *s)
{
    free(s->buffer);
    free(s->text);
    free(s);
}

static void resume(struct stream *s)
{
    if (s->suspended) {
        s->suspended = false;
        server_resume(s->api, s->connection);
    }
}

/* False: too much waits already, or memory is short. */
static bool append(struct stream *s, const char *text, size_t bytes)
{
    if (s->begin && s->begin + s->bytes + bytes > s->capacity) {
        memmove(s->buffer, s->buffer + s->begin, s->bytes);
        s->begin = 0;
    }
    if (s->bytes + bytes > BUFFER_MOST)
        return false;
    if (s->begin + s->bytes + bytes > s->capacity) {
        size_t capacity = s->begin + s->bytes + bytes + 4096;
        char *buffer = realloc(s->buffer, capacity);
        if (!buffer)
            return false;
        s->buffer = buffer;
        s->capacity = capacity;
    }
    memcpy(s->buffer + s->begin + s->bytes, text, bytes);
    s->bytes += bytes;
    return true;
}

/* ---- Reading ---- */

static struct err *render(struct stream *s, const struct store_events *events)
{
    struct text out = {0};
    for (size_t i = 0; !out.no_memory && i < events->count; i++) {
        cJSON *json = present_event(&events->items[i]);
        char *data = json_print(json);
        if (data)
            text_print(&out, "id: %lld\nevent: %s\ndata: %s\n\n", (long long)events->items[i].id,
                       events->items[i].type, data);
        else
            out.no_memory = true;
        free(data);
        cJSON_Delete(json);
    }
    s->text = text_take(&out);
    return s->text ? NULL : err_no_memory();
}

static struct err *read_events(struct store_tx *tx, void *arg)
{
    struct stream *s = arg;
    struct store_events events;
    struct store_job job;
    s->job_over = false;
    if (s->job_id) {
        TRY(store_job_get(tx, s->job_id, &job));
        s->job_over = STORE_JOB_MASK(job.state) & STORE_JOB_OVER;
    }
    TRY(store_events_list(tx, s->job_id, s->last_id, EVENTS_AT_ONCE, &events));
    s->text_last_id = events.count ? events.items[events.count - 1].id : s->last_id;
    s->text_more = events.more;
    return render(s, &events);
}

static void begin_read(struct stream *s);

static void after_read(void *arg, struct err *err)
{
    struct stream *s = arg;
    s->reading = false;
    if (s->gone) {
        err_free(err);
        free_stream(s);
        return;
    }
    if (err) {
        log_warning("an event stream ends: %s", err_message(err));
        err_free(err);
        s->ended = true;
    } else if (append(s, s->text, strlen(s->text))) {
        s->last_id = s->text_last_id;
        s->ended = s->ended || (s->job_over && !s->text_more);
    } else {
        s->ended = true;
    }
    free(s->text);
    s->text = NULL;
    if (!s->ended && (s->text_more || s->again))
        begin_read(s);
    if (s->bytes || s->ended)
        resume(s);
}

static void begin_read(struct stream *s)
{
    s->reading = true;
    s->again = false;
    async_read(s->api->async, &s->item, read_events, s, after_read);
}

void stream_wake(struct api *api)
{
    for (struct stream *s = api->streams; s; s = s->next) {
        if (s->ended)
            continue;
        if (s->reading)
            s->again = true;
        else
            begin_read(s);
    }
}

/* ---- Sending ---- */

static ssize_t on_want(void *cls, uint64_t pos, char *out, size_t most)
{
    (void)pos;
    struct stream *s = cls;
    if (s->bytes) {
        size_t n = s->bytes < most ? s->bytes : most;
        memcpy(out, s->buffer + s->begin, n);
        s->begin = s->bytes == n ? 0 : s->begin + n;
        s->bytes -= n;
        return (ssize_t)n;
    }
    if (s->ended)
        return MHD_CONTENT_READER_END_OF_STREAM;
    s->suspended = true;
    MHD_suspend_connection(s->connection);
    return 0;
}

static void on_gone(void *cls)
{
    struct stream *s = cls;
    if (s->prev)
        s->prev->next = s->next;
    else
        s->api->streams = s->next;
    if (s->next)
        s->next->prev = s->prev;
    s->api->n_streams--;
    s->gone = true;
    if (!s->reading)
        free_stream(s);
}

void stream_begin(struct request *r, int64_t job_id, int64_t after_id)
{
    struct api *api = r->api;
    if (api->n_streams >= STREAMS_MOST) {
        request_reply_problem(r, 503, "busy", NULL, "There are %d event streams open already.",
                              STREAMS_MOST);
        request_header(r, "Retry-After", "30");
        return;
    }
    struct stream *s = calloc(1, sizeof *s);
    struct MHD_Response *response =
        s ? MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 4096, on_want, s, on_gone) : NULL;
    if (!response) {
        free(s);
        request_reply_err(r, err_no_memory());
        return;
    }
    s->api = api;
    s->connection = r->connection;
    s->job_id = job_id;
    s->last_id = after_id;
    s->next = api->streams;
    if (s->next)
        s->next->prev = s;
    api->streams = s;
    api->n_streams++;
    MHD_add_response_header(response, "Content-Type", "text/event-stream");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    char hello[40];
    append(s, hello, (size_t)snprintf(hello, sizeof hello, "retry: %d\n\n", RETRY_MS));
    r->response = response;
    r->status = 200;
    begin_read(s);
}

void stream_end(struct api *api)
{
    uv_timer_stop(&api->heartbeat);
    for (struct stream *s = api->streams; s; s = s->next) {
        s->ended = true;
        resume(s);
    }
}

/* A suspended connection is not polled: writing is how a client that has left is noticed. */
static void on_heartbeat(uv_timer_t *timer)
{
    struct api *api = timer->data;
    for (struct stream *s = api->streams; s; s = s->next) {
        if (!s->suspended)
            continue;
        append(s, ":\n\n", 3);
        resume(s);
    }
}

void stream_heartbeat_start(struct api *api)
{
    uv_timer_start(&api->heartbeat, on_heartbeat, HEARTBEAT_MS, HEARTBEAT_MS);
}
