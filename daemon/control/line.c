#include "daemon/control/line.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/json.h"
#include "daemon/base/log.h"

#define LINE_BYTES ((size_t)1 << 20)
#define UNSENT_BYTES ((size_t)16 << 20)
#define STRANGERS 64 /* lines that have not said hello */
#define HELLO_MS 10000
#define AGAIN_MS 100

struct line_server {
    uv_loop_t *loop;
    uv_pipe_t *listener; /* NULL: none */
    uv_timer_t again;    /* for who could not be accepted for lack of memory */
    dev_t device;        /* of its socket */
    ino_t inode;
    struct line_handlers handlers;
    struct line *lines;
    int strangers;
    bool closing;
    int open_handles; /* `again` is there as long as the server */
    char path[108];
};

struct line {
    uv_pipe_t pipe;
    uv_timer_t hello;
    struct line_server *server;
    struct line *prev, *next;
    void *owner;
    pid_t peer;
    char *buffer;
    size_t bytes, capacity;
    int open_handles;
    int unsent; /* writes */
    bool closing, held, reading, dispatching;
};

struct message {
    uv_write_t request;
    struct line *line;
    char *text;
};

/* ---- Closing ---- */

static void server_handle_closed(struct line_server *s)
{
    if (--s->open_handles == 0)
        free(s);
}

static void on_handle_closed(uv_handle_t *handle)
{
    struct line *l = handle->data;
    if (--l->open_handles > 0)
        return;
    struct line_server *s = l->server;
    free(l->buffer);
    free(l);
    server_handle_closed(s);
}

static void close_now(struct line *l)
{
    if (!uv_is_closing((uv_handle_t *)&l->pipe))
        uv_close((uv_handle_t *)&l->pipe, on_handle_closed);
}

void line_close(struct line *l)
{
    if (l->closing)
        return;
    l->closing = true;
    struct line_server *s = l->server;
    uv_read_stop((uv_stream_t *)&l->pipe);
    if (!l->owner)
        s->strangers--;
    if (l->prev)
        l->prev->next = l->next;
    else
        s->lines = l->next;
    if (l->next)
        l->next->prev = l->prev;
    if (!s->closing && s->handlers.closed)
        s->handlers.closed(s->handlers.user, l);
    l->owner = NULL;
    uv_close((uv_handle_t *)&l->hello, on_handle_closed);
    if (l->unsent == 0 || s->closing)
        close_now(l);
}

/* ---- Sending ---- */

static void on_sent(uv_write_t *request, int status)
{
    struct message *m = request->data;
    struct line *l = m->line;
    free(m->text);
    free(m);
    l->unsent--;
    if (status < 0 && !l->closing)
        line_close(l);
    if (l->closing && (l->unsent == 0 || status < 0))
        close_now(l);
}

void line_send(struct line *l, cJSON *json)
{
    char *text = json_print(json);
    cJSON_Delete(json);
    if (l->closing) {
        free(text);
        return;
    }
    size_t n = text ? strlen(text) : 0;
    struct message *m = text ? malloc(sizeof *m) : NULL;
    char *line = m ? realloc(text, n + 2) : NULL;
    if (line)
        text = line;
    if (!line || uv_stream_get_write_queue_size((uv_stream_t *)&l->pipe) > UNSENT_BYTES) {
        log_warning("a worker's line is closed: %s", line ? "it does not read" : "out of memory");
        free(text);
        free(m);
        line_close(l);
        return;
    }
    memcpy(text + n, "\n", 2);
    *m = (struct message){.line = l, .text = text, .request.data = m};
    uv_buf_t buf = uv_buf_init(text, (unsigned)(n + 1));
    l->unsent++;
    if (uv_write(&m->request, (uv_stream_t *)&l->pipe, &buf, 1, on_sent) != 0) {
        l->unsent--;
        free(text);
        free(m);
        line_close(l);
    }
}

/* ---- Reading ---- */

static void on_room(uv_handle_t *handle, size_t suggested, uv_buf_t *buf)
{
    (void)suggested;
    struct line *l = handle->data;
    if (l->capacity - l->bytes < 4096 && l->capacity < LINE_BYTES) {
        size_t capacity = l->capacity ? l->capacity * 4 : 16384;
        char *grown = realloc(l->buffer, capacity < LINE_BYTES ? capacity : LINE_BYTES);
        if (grown) {
            l->buffer = grown;
            l->capacity = capacity < LINE_BYTES ? capacity : LINE_BYTES;
        }
    }
    *buf = uv_buf_init(l->buffer + l->bytes, (unsigned)(l->capacity - l->bytes));
}

static void dispatch(struct line *l, char *text, size_t bytes)
{
    cJSON *json = NULL;
    struct json_fault fault;
    if (!json_parse_line(text, bytes, false, &json, &fault) || !cJSON_IsObject(json)) {
        log_warning("process %d sent a line that %s; its line is closed", (int)l->peer,
                    fault.no_memory ? "memory is too short for" : "is no JSON object");
        cJSON_Delete(json);
        line_close(l);
        return;
    }
    l->server->handlers.message(l->server->handlers.user, l, json);
    cJSON_Delete(json);
}

/* All whole lines of the buffer, until the line is closed or held. */
static void take_lines(struct line *l)
{
    size_t at = 0;
    char *end;
    if (l->dispatching)
        return;
    l->dispatching = true;
    while (!l->closing && !l->held && l->bytes > at &&
           (end = memchr(l->buffer + at, '\n', l->bytes - at))) {
        char *text = l->buffer + at;
        at = (size_t)(end - l->buffer) + 1;
        dispatch(l, text, (size_t)(end - text));
    }
    l->dispatching = false;
    if (at) {
        memmove(l->buffer, l->buffer + at, l->bytes - at);
        l->bytes -= at;
    }
    if (!l->closing && !l->held && l->bytes == LINE_BYTES) {
        log_warning("process %d sent a line of more than %zu bytes; it is closed", (int)l->peer,
                    LINE_BYTES);
        line_close(l);
    }
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    (void)buf;
    struct line *l = stream->data;
    if (n < 0) {
        line_close(l);
        return;
    }
    l->bytes += (size_t)n;
    take_lines(l);
}

void line_hold(struct line *l, bool hold)
{
    if (l->closing || l->held == hold)
        return;
    l->held = hold;
    if (hold) {
        uv_read_stop((uv_stream_t *)&l->pipe);
        return;
    }
    uv_read_start((uv_stream_t *)&l->pipe, on_room, on_read);
    take_lines(l);
}

/* ---- Accepting ---- */

static void on_silent(uv_timer_t *timer)
{
    line_close(timer->data);
}

static void on_connection(uv_stream_t *stream, int status);

static void on_again(uv_timer_t *timer)
{
    struct line_server *s = timer->data;
    if (s->listener)
        on_connection((uv_stream_t *)s->listener, 0);
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct line_server *s = stream->data;
    struct line *l = status == 0 ? calloc(1, sizeof *l) : NULL;
    if (!l) { /* libuv does not listen any more until it is accepted */
        if (status == 0)
            uv_timer_start(&s->again, on_again, AGAIN_MS, 0);
        return;
    }
    l->server = s;
    l->pipe.data = l->hello.data = l;
    uv_pipe_init(stream->loop, &l->pipe, 0);
    uv_timer_init(stream->loop, &l->hello);
    l->open_handles = 2;
    s->open_handles++;
    l->next = s->lines;
    if (l->next)
        l->next->prev = l;
    s->lines = l;
    s->strangers++;
    int fd;
    struct ucred peer;
    socklen_t size = sizeof peer;
    if (uv_accept(stream, (uv_stream_t *)&l->pipe) != 0 ||
        uv_fileno((uv_handle_t *)&l->pipe, &fd) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || s->strangers > STRANGERS ||
        uv_read_start((uv_stream_t *)&l->pipe, on_room, on_read) != 0) {
        line_close(l);
        return;
    }
    l->peer = peer.pid;
    uv_timer_start(&l->hello, on_silent, HELLO_MS, 0);
}

void line_accepted(struct line *l, void *owner)
{
    if (!l->owner)
        l->server->strangers--;
    l->owner = owner;
    uv_timer_stop(&l->hello);
}

void *line_owner(const struct line *l)
{
    return l->owner;
}

pid_t line_peer(const struct line *l)
{
    return l->peer;
}

/* ---- The server ---- */

static void on_again_closed(uv_handle_t *handle)
{
    server_handle_closed(handle->data);
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct line_server *s = handle->data;
    free(handle);
    server_handle_closed(s);
}

/* libuv removes what lies at the path then, whose ever it is. */
static void close_listener(struct line_server *s)
{
    uv_timer_stop(&s->again);
    if (s->listener)
        uv_close((uv_handle_t *)s->listener, on_listener_closed);
    s->listener = NULL;
}

/* For our user; for our group too where that may write what we make (launch.h). */
static int bind_listener(struct line_server *s)
{
    mode_t mask = umask(0177);
    umask(mask & 0020 ? 0177 : 0117);
    int rc = uv_pipe_bind(s->listener, s->path);
    umask(mask);
    return rc;
}

struct err *line_server_listen(struct line_server *s)
{
    struct stat st;
    close_listener(s);
    s->listener = malloc(sizeof *s->listener);
    if (!s->listener)
        return err_no_memory();
    uv_pipe_init(s->loop, s->listener, 0);
    s->listener->data = s;
    s->open_handles++;
    unlink(s->path); /* of a daemon that is dead: the directory is locked by us */
    int rc = bind_listener(s);
    if (rc == 0)
        rc = uv_listen((uv_stream_t *)s->listener, 128, on_connection);
    if (rc == 0 && lstat(s->path, &st) != 0)
        rc = uv_translate_sys_error(errno);
    if (rc != 0) {
        close_listener(s);
        return err_new(ERR_IO, "cannot listen at %s: %s", s->path, uv_strerror(rc));
    }
    s->device = st.st_dev;
    s->inode = st.st_ino;
    return NULL;
}

bool line_server_reached(const struct line_server *s)
{
    struct stat st;
    return s->listener && lstat(s->path, &st) == 0 && st.st_dev == s->device &&
           st.st_ino == s->inode;
}

struct err *line_server_open(uv_loop_t *loop, const char *path,
                             const struct line_handlers *handlers, struct line_server **out)
{
    struct line_server *s = calloc(1, sizeof *s);
    if (!s)
        return err_no_memory();
    s->loop = loop;
    s->handlers = *handlers;
    uv_timer_init(loop, &s->again);
    s->again.data = s;
    s->open_handles = 1;
    strncpy(s->path, path, sizeof s->path - 1);
    struct err *err = line_server_listen(s);
    if (err)
        line_server_close(s);
    else
        *out = s;
    return err;
}

void line_server_close(struct line_server *s)
{
    if (!s)
        return;
    s->closing = true;
    while (s->lines)
        line_close(s->lines);
    close_listener(s);
    uv_close((uv_handle_t *)&s->again, on_again_closed);
}
