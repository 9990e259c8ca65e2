/* The thread that owns the socket: connects, says hello, sends records and posts, takes answers and
 * orders, and watches the lease; on any trouble it closes the connection and tries again.
 *
 * Output goes through one block that holds whole messages; when it is empty it is filled again,
 * with a post that waits or with the next stretch of the journal. So no message is cut by another,
 * and memory is two blocks of LINE_BYTES whatever happens. A message from the daemon that is not
 * what the protocol says costs the connection, and nothing else. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/worker/link/link_state.h"

#define FIRST_BACKOFF_S 0.1
#define LONGEST_BACKOFF_S 5.0

enum phase { DISCONNECTED, GREETING, WELCOMED };

struct connection {
    struct link *link;
    enum phase phase;
    int fd;
    double backoff_s, connect_at_s;
    double lease_end_s;
    struct journal_place acked; /* as the last welcome said */
    off_t sent;                 /* the journal's bytes that went into `out` since, or before */
    char *in, *out;             /* [LINE_BYTES] */
    size_t in_bytes, out_bytes, out_done;
};

/* ---- messages to the daemon ---- */

static struct err *put_hello(struct connection *c)
{
    struct link *l = c->link;
    const struct link_identity *id = &l->identity;
    cJSON *hello = cJSON_CreateObject();
    cJSON_AddNumberToObject(hello, "v", 1);
    cJSON_AddStringToObject(hello, "type", "hello");
    if (id->is_task) {
        cJSON_AddNumberToObject(hello, "task", (double)id->task);
    } else {
        cJSON_AddNumberToObject(hello, "job", (double)id->job);
        cJSON_AddNumberToObject(hello, "attempt", (double)id->attempt);
        cJSON_AddNumberToObject(hello, "rank", id->rank);
    }
    cJSON_AddStringToObject(hello, "secret", l->secret);
    cJSON_AddNumberToObject(hello, "pid", getpid());
    cJSON_AddNumberToObject(hello, "start_time", (double)l->start_time);
    pthread_mutex_lock(&l->mutex);
    cJSON_AddNumberToObject(hello, "last_seq", (double)l->journal.last_seq);
    pthread_mutex_unlock(&l->mutex);
    char *text = json_print(hello);
    cJSON_Delete(hello);
    if (!text)
        return err_no_memory();
    c->out_bytes = strlen(text);
    memcpy(c->out, text, c->out_bytes);
    c->out[c->out_bytes++] = '\n';
    free(text);
    return NULL;
}

/* The next post that this connection has not carried yet, or else the next records. */
static struct err *put_next(struct connection *c)
{
    struct link *l = c->link;
    pthread_mutex_lock(&l->mutex);
    off_t end = l->journal.bytes;
    struct link_post *post = l->posts;
    while (post && (post->sent || post->answer))
        post = post->next;
    if (post) {
        memcpy(c->out, post->line, post->line_bytes);
        c->out_bytes = post->line_bytes;
        post->sent = true;
    }
    pthread_mutex_unlock(&l->mutex);
    if (post || c->sent == end)
        return NULL;
    TRY(journal_read(&l->journal, c->sent, end, c->out, &c->out_bytes));
    c->sent += (off_t)c->out_bytes;
    return NULL;
}

/* Sends what the socket takes. */
static struct err *flush(struct connection *c)
{
    for (;;) {
        if (c->out_done == c->out_bytes) {
            c->out_done = c->out_bytes = 0;
            if (c->phase == WELCOMED)
                TRY(put_next(c));
            if (!c->out_bytes)
                return NULL;
        }
        ssize_t n = send(c->fd, c->out + c->out_done, c->out_bytes - c->out_done,
                         MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            return NULL;
        if (n < 0 && errno != EINTR)
            return err_errno(errno, "cannot send to %s", c->link->socket_path);
        c->out_done += n > 0 ? (size_t)n : 0;
    }
}

/* ---- messages from the daemon ---- */

static const char *get_text(const cJSON *message, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(message, key);
    return cJSON_IsString(item) ? item->valuestring : NULL;
}

static struct err *get_number(const cJSON *message, const char *key, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(message, key);
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble))
        return err_new(ERR_INVALID, "the daemon's \"%s\" message has no number \"%s\"",
                       get_text(message, "type"), key);
    *out = item->valuedouble;
    return NULL;
}

static struct err *take_lease(struct connection *c, const cJSON *message)
{
    double lease_s;
    TRY(get_number(message, "lease_s", &lease_s));
    c->lease_end_s = link_now_s() + lease_s;
    return NULL;
}

/* Records up to `seq` are the daemon's now. */
static struct err *take_acked(struct connection *c, double seq)
{
    struct link *l = c->link;
    pthread_mutex_lock(&l->mutex);
    int64_t last_seq = l->journal.last_seq;
    bool possible = seq >= 0 && seq <= (double)last_seq && seq == floor(seq);
    if (possible && (int64_t)seq > l->acked) {
        l->acked = (int64_t)seq;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->mutex);
    if (!possible)
        return err_new(ERR_INVALID,
                       "the daemon acknowledges record %.17g of %s, whose journal has %lld", seq,
                       l->name, (long long)last_seq);
    return NULL;
}

/* Takes the message over where it is the first one. */
static struct err *take_welcome(struct connection *c, cJSON **message)
{
    struct link *l = c->link;
    double acked;
    if (c->phase != GREETING)
        return err_new(ERR_INVALID, "the daemon says welcome twice");
    TRY(get_number(*message, "acked", &acked));
    TRY(take_acked(c, acked));
    TRY(take_lease(c, *message));
    TRY(journal_seek(&l->journal, (int64_t)acked, &c->acked));
    c->sent = c->acked.offset;
    c->phase = WELCOMED;
    c->backoff_s = FIRST_BACKOFF_S;
    pthread_mutex_lock(&l->mutex);
    l->acked = c->acked.seq;
    l->trouble[0] = '\0';
    for (struct link_post *post = l->posts; post; post = post->next)
        post->sent = false;
    if (!l->welcome) {
        l->welcome = *message;
        *message = NULL;
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

static struct err *take_refusal(struct connection *c, const cJSON *message)
{
    struct link *l = c->link;
    const char *reason = get_text(message, "reason");
    pthread_mutex_lock(&l->mutex);
    l->refused =
        err_new(ERR_ABORTED, "the daemon refuses this worker: %s", reason ? reason : "no reason");
    struct err *refused = link_refusal(l);
    atomic_fetch_or(&l->orders, LINK_STOP);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mutex);
    return refused;
}

static struct err *take_exchange(struct connection *c, cJSON *message)
{
    struct link *l = c->link;
    const char *key = get_text(message, "key");
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(message, "data");
    if (!key || !cJSON_IsArray(data))
        return err_new(ERR_INVALID, "the daemon's \"exchange\" message has no key and data");
    struct err *e = NULL;
    pthread_mutex_lock(&l->mutex);
    for (struct link_post *post = l->posts; post && !e; post = post->next) {
        if (post->answer || strcmp(post->key, key) != 0)
            continue;
        post->answer = cJSON_Duplicate(data, true);
        if (!post->answer)
            e = err_no_memory();
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mutex);
    return e;
}

/* About one meeting where it names a key; otherwise about whatever this worker waits for. */
static struct err *take_error(struct connection *c, const cJSON *message)
{
    struct link *l = c->link;
    const char *key = get_text(message, "key"), *reason = get_text(message, "reason");
    log_warning("the daemon objects: %s", reason ? reason : "no reason");
    pthread_mutex_lock(&l->mutex);
    for (struct link_post *post = l->posts; post; post = post->next)
        if (!post->error && !post->answer && (!key || strcmp(post->key, key) == 0))
            post->error = err_new(ERR_CONFLICT, "the daemon refuses the post at meeting \"%s\": %s",
                                  post->key, reason ? reason : "no reason");
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

static struct err *take_ack(struct connection *c, const cJSON *message)
{
    double seq;
    TRY(get_number(message, "seq", &seq));
    return take_acked(c, seq);
}

static struct err *take_order(struct connection *c, enum link_order order, const cJSON *message)
{
    const char *reason = get_text(message, "reason");
    log_info("the daemon orders: %s%s%s", get_text(message, "type"), reason ? ": " : "",
             reason ? reason : "");
    atomic_fetch_or(&c->link->orders, order);
    return NULL;
}

static struct err *take(struct connection *c, cJSON **message)
{
    const char *type = get_text(*message, "type");
    if (!type)
        return err_new(ERR_INVALID, "the daemon sent a message without a type");
    if (strcmp(type, "welcome") == 0)
        return take_welcome(c, message);
    if (strcmp(type, "refused") == 0)
        return take_refusal(c, *message);
    if (strcmp(type, "error") == 0)
        return take_error(c, *message);
    if (c->phase != WELCOMED)
        return err_new(ERR_INVALID, "the daemon sent \"%s\" before its welcome", type);
    if (strcmp(type, "ack") == 0)
        return take_ack(c, *message);
    if (strcmp(type, "exchange") == 0)
        return take_exchange(c, *message);
    if (strcmp(type, "lease") == 0)
        return take_lease(c, *message);
    if (strcmp(type, "stop") == 0)
        return take_order(c, LINK_STOP, *message);
    if (strcmp(type, "pause") == 0)
        return take_order(c, LINK_PAUSE, *message);
    if (strcmp(type, "checkpoint_now") == 0)
        return take_order(c, LINK_CHECKPOINT_NOW, *message);
    /* A daemon that was upgraded meanwhile may have more to say. */
    log_warning("the daemon sent a message of unknown type \"%s\"", type);
    return NULL;
}

static struct err *take_line(struct connection *c, const char *line, size_t length)
{
    cJSON *message;
    struct err *e = json_parse(line, length, &message);
    if (e)
        return err_wrap(e, "the daemon sent a line that is not JSON");
    e = take(c, &message);
    cJSON_Delete(message);
    return e;
}

static struct err *receive(struct connection *c)
{
    ssize_t n = recv(c->fd, c->in + c->in_bytes, LINE_BYTES - c->in_bytes, MSG_DONTWAIT);
    if (n == 0)
        return err_new(ERR_IO, "the daemon closed the connection");
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return NULL;
    if (n < 0)
        return err_errno(errno, "cannot receive from %s", c->link->socket_path);
    char *line = c->in, *newline, *fresh = c->in + c->in_bytes;
    c->in_bytes += (size_t)n;
    char *end = c->in + c->in_bytes;
    for (; (newline = memchr(fresh, '\n', (size_t)(end - fresh))); fresh = line = newline + 1)
        TRY(take_line(c, line, (size_t)(newline - line)));
    c->in_bytes = (size_t)(end - line);
    memmove(c->in, line, c->in_bytes);
    if (c->in_bytes == LINE_BYTES)
        return err_new(ERR_INVALID, "the daemon sent a line of more than %zu bytes", LINE_BYTES);
    return NULL;
}

/* ---- the connection ---- */

/* Consumes e. */
static void lose(struct connection *c, struct err *e)
{
    struct link *l = c->link;
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    c->in_bytes = c->out_bytes = c->out_done = 0;
    pthread_mutex_lock(&l->mutex);
    if (strcmp(l->trouble, err_message(e)) != 0)
        log_warning("no connection to the daemon: %s", err_message(e));
    snprintf(l->trouble, sizeof l->trouble, "%s", err_message(e));
    c->connect_at_s = l->refused ? INFINITY : link_now_s() + c->backoff_s;
    pthread_mutex_unlock(&l->mutex);
    c->phase = DISCONNECTED;
    c->backoff_s = fmin(2 * c->backoff_s, LONGEST_BACKOFF_S);
    err_free(e);
}

static struct err *connect_and_greet(struct connection *c)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof to.sun_path, "%s", c->link->socket_path);
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)&to, sizeof to) < 0)
        return err_errno(errno, "cannot connect to %s", c->link->socket_path);
    c->phase = GREETING;
    TRY(put_hello(c));
    return flush(c);
}

static bool is_closing(struct link *l)
{
    pthread_mutex_lock(&l->mutex);
    bool closing = l->closing;
    pthread_mutex_unlock(&l->mutex);
    return closing;
}

/* Milliseconds until the next thing to do by the clock, rounded up. */
static int patience_ms(const struct connection *c)
{
    double next_s = fmin(c->lease_end_s, c->phase == DISCONNECTED ? c->connect_at_s : INFINITY);
    double left_ms = (next_s - link_now_s()) * 1e3 + 1;
    return left_ms > 60000 ? 60000 : left_ms > 0 ? (int)left_ms : 0;
}

static struct err *attend(struct connection *c)
{
    struct pollfd polls[2] = {{.fd = c->link->wake_fd, .events = POLLIN},
                              {.fd = c->fd, .events = POLLIN}};
    if (c->out_done < c->out_bytes)
        polls[1].events |= POLLOUT;
    poll(polls, 2, patience_ms(c));
    uint64_t times;
    if (polls[0].revents && read(c->link->wake_fd, &times, sizeof times) < 0 && errno != EAGAIN)
        log_warning("cannot read the link's eventfd: %s", strerror(errno));
    if (c->phase == DISCONNECTED)
        return NULL;
    if (polls[1].revents & ~POLLOUT)
        TRY(receive(c));
    return flush(c);
}

void *connection_run(void *user)
{
    struct link *l = user;
    struct connection c = {
        .link = l,
        .fd = -1,
        .backoff_s = FIRST_BACKOFF_S,
        .lease_end_s = INFINITY,
        .in = malloc(LINE_BYTES),
        .out = malloc(LINE_BYTES),
    };
    if (!c.in || !c.out)
        lose(&c, err_no_memory());
    while (c.in && c.out && !is_closing(l)) {
        struct err *e = NULL;
        if (c.phase == DISCONNECTED && link_now_s() >= c.connect_at_s)
            e = connect_and_greet(&c);
        if (!e)
            e = attend(&c);
        if (e)
            lose(&c, e);
        if (link_now_s() >= c.lease_end_s) {
            log_warning("the lease is over");
            c.lease_end_s = INFINITY;
            atomic_fetch_or(&l->orders, LINK_LEASE_OVER);
        }
    }
    if (c.fd >= 0)
        close(c.fd);
    free(c.in);
    free(c.out);
    return NULL;
}
