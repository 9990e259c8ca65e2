#include "tests/support/fake_daemon.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LINE_BYTES ((size_t)1 << 20)
#define TICK_MS 20
#define SECRET "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

/* Waits until fd has something, or the test says stop. */
static bool await_readable(struct fake_daemon *d, int fd)
{
    while (!atomic_load(&d->stopping)) {
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        if (poll(&readable, 1, TICK_MS) > 0)
            return true;
    }
    return false;
}

static void serve_connection(struct fake_daemon *d, int fd)
{
    struct fake_connection c = {.fd = fd, .number = d->connections++, .buffer = malloc(LINE_BYTES)};
    pthread_mutex_lock(&d->mutex);
    d->current_fd = fd;
    pthread_mutex_unlock(&d->mutex);
    if (d->handler)
        d->handler(d, &c, d->user);
    else
        fake_serve(d, &c);
    pthread_mutex_lock(&d->mutex);
    d->current_fd = -1;
    close(fd);
    pthread_mutex_unlock(&d->mutex);
    free(c.buffer);
}

static void *run(void *user)
{
    struct fake_daemon *d = user;
    while (await_readable(d, d->listener)) {
        int fd = accept4(d->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0)
            serve_connection(d, fd);
    }
    return NULL;
}

void fake_daemon_resume(struct fake_daemon *d)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%.100s", d->socket_path);
    d->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(d->listener >= 0);
    int bound = bind(d->listener, (const struct sockaddr *)&address, sizeof address);
    int listening = bound == 0 ? listen(d->listener, 8) : -1;
    assert(listening == 0);
    atomic_store(&d->stopping, false);
    int started = pthread_create(&d->thread, NULL, run, d);
    assert(started == 0);
    (void)listening, (void)started;
}

void fake_daemon_pause(struct fake_daemon *d)
{
    atomic_store(&d->stopping, true);
    pthread_join(d->thread, NULL);
    close(d->listener);
    unlink(d->socket_path);
}

void fake_daemon_start(struct fake_daemon *d, int world, fake_handler handler, void *user)
{
    *d = (struct fake_daemon){
        .world = world, .lease_s = 600, .handler = handler, .user = user, .current_fd = -1};
    pthread_mutex_init(&d->mutex, NULL);
    snprintf(d->directory, sizeof d->directory, "/tmp/fake-daemon-XXXXXX");
    char *made = mkdtemp(d->directory);
    assert(made);
    (void)made;
    snprintf(d->socket_path, sizeof d->socket_path, "%s/worker.sock", d->directory);
    fake_daemon_resume(d);
}

static void remove_directory(const char *path)
{
    DIR *directory = opendir(path);
    assert(directory);
    for (struct dirent *entry; (entry = readdir(directory));)
        unlinkat(dirfd(directory), entry->d_name, 0);
    closedir(directory);
    rmdir(path);
}

void fake_daemon_stop(struct fake_daemon *d)
{
    fake_daemon_pause(d);
    remove_directory(d->directory);
    pthread_mutex_destroy(&d->mutex);
    cJSON_Delete(d->hello);
    for (int64_t i = 0; i < d->n_records; i++)
        cJSON_Delete(d->records[i]);
    free(d->records);
}

int fake_bootstrap(const struct fake_daemon *d, int rank)
{
    int ends[2];
    int made = pipe(ends);
    assert(made == 0);
    (void)made;
    char who[64] = "\"task\": 7";
    if (rank >= 0)
        snprintf(who, sizeof who, "\"job\": 1, \"attempt\": 1, \"rank\": %d", rank);
    dprintf(ends[1],
            "{\"v\": 1, \"socket\": \"%s\", \"directory\": \"%s\", \"secret\": \"" SECRET
            "\", %s}\n",
            d->socket_path, d->directory, who);
    close(ends[1]);
    return ends[0];
}

/* ---- a connection ---- */

cJSON *fake_receive(struct fake_daemon *d, struct fake_connection *c)
{
    for (;;) {
        char *newline = memchr(c->buffer, '\n', c->bytes);
        if (newline) {
            cJSON *message = cJSON_ParseWithLength(c->buffer, (size_t)(newline - c->buffer));
            assert(message && "the worker sent a line that is not JSON");
            c->bytes -= (size_t)(newline + 1 - c->buffer);
            memmove(c->buffer, newline + 1, c->bytes);
            return message;
        }
        assert(c->bytes < LINE_BYTES && "the worker sent a line that is too long");
        if (!await_readable(d, c->fd))
            return NULL;
        ssize_t n = recv(c->fd, c->buffer + c->bytes, LINE_BYTES - c->bytes, 0);
        if (n <= 0)
            return NULL;
        c->bytes += (size_t)n;
    }
}

static bool send_text(int fd, const char *text, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = send(fd, text + done, bytes - done, MSG_NOSIGNAL);
        if (n < 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

void fake_send(struct fake_connection *c, const char *format, ...)
{
    char *text;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    assert(n >= 0);
    send_text(c->fd, text, (size_t)n);
    send_text(c->fd, "\n", 1);
    free(text);
}

bool fake_order(struct fake_daemon *d, const char *line)
{
    pthread_mutex_lock(&d->mutex);
    bool sent = d->current_fd >= 0 && send_text(d->current_fd, line, strlen(line)) &&
                send_text(d->current_fd, "\n", 1);
    pthread_mutex_unlock(&d->mutex);
    return sent;
}

static const char *text_of(const cJSON *message, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(message, key));
}

static int64_t number_of(const cJSON *message, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(message, key);
    assert(cJSON_IsNumber(item));
    return (int64_t)item->valuedouble;
}

bool fake_welcome(struct fake_daemon *d, struct fake_connection *c)
{
    cJSON *hello = fake_receive(d, c);
    if (!hello)
        return false;
    assert(strcmp(text_of(hello, "type"), "hello") == 0);
    assert(strcmp(text_of(hello, "secret"), SECRET) == 0);
    pthread_mutex_lock(&d->mutex);
    cJSON_Delete(d->hello);
    d->hello = hello;
    long long acked = (long long)d->n_records;
    pthread_mutex_unlock(&d->mutex);
    fake_send(c,
              "{\"type\": \"welcome\", \"acked\": %lld, \"lease_s\": %g, \"world\": %d, \"spec\": "
              "{\"name\": \"test\"}, \"artifact\": \"/nowhere\"}",
              acked, d->lease_s, d->world);
    return true;
}

void fake_commit(struct fake_daemon *d, cJSON *record)
{
    int64_t seq = number_of(record, "seq");
    pthread_mutex_lock(&d->mutex);
    assert(seq >= 1 && seq <= d->n_records + 1 && "a record is missing");
    if (seq == d->n_records + 1) {
        d->records = realloc(d->records, (size_t)seq * sizeof *d->records);
        assert(d->records);
        d->records[d->n_records++] = record;
        record = NULL;
    } else {
        bool same = cJSON_Compare(record, d->records[seq - 1], true);
        assert(same && "a record came again as another one");
        (void)same;
    }
    pthread_mutex_unlock(&d->mutex);
    cJSON_Delete(record);
}

static void answer_meeting(struct fake_daemon *d, struct fake_connection *c, const cJSON *post)
{
    cJSON *answer = cJSON_CreateObject();
    cJSON_AddStringToObject(answer, "type", "exchange");
    cJSON_AddStringToObject(answer, "key", text_of(post, "key"));
    cJSON *data = cJSON_AddArrayToObject(answer, "data");
    for (int r = 0; r < d->world; r++)
        cJSON_AddItemToArray(data, cJSON_CreateString(text_of(post, "data")));
    char *text = cJSON_PrintUnformatted(answer);
    fake_send(c, "%s", text);
    free(text);
    cJSON_Delete(answer);
}

void fake_serve(struct fake_daemon *d, struct fake_connection *c)
{
    if (!fake_welcome(d, c))
        return;
    for (cJSON *message; (message = fake_receive(d, c));) {
        if (strcmp(text_of(message, "type"), "record") == 0) {
            long long seq = number_of(message, "seq");
            fake_commit(d, message);
            fake_send(c, "{\"type\": \"ack\", \"seq\": %lld}", seq);
        } else {
            assert(strcmp(text_of(message, "type"), "exchange") == 0);
            answer_meeting(d, c, message);
            cJSON_Delete(message);
        }
    }
}

int64_t fake_records(struct fake_daemon *d)
{
    pthread_mutex_lock(&d->mutex);
    int64_t n = d->n_records;
    pthread_mutex_unlock(&d->mutex);
    return n;
}
