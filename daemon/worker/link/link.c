#include "daemon/worker/link/link.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"
#include "daemon/worker/link/bootstrap.h"
#include "daemon/worker/link/link_state.h"

#define POST_BYTES ((size_t)1 << 16)
#define BASE64 sodium_base64_VARIANT_ORIGINAL
#define DISK_PATIENCE_S 240.0
#define DISK_RETRY_NS 500000000L

double link_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void link_wake(struct link *l)
{
    uint64_t one = 1;
    if (write(l->wake_fd, &one, sizeof one) < 0) {
        /* the counter is full: the thread has yet to look at an earlier call */
    }
}

struct err *link_refusal(const struct link *l)
{
    return err_new(err_kind(l->refused), "%s", err_message(l->refused));
}

/* Waits for a change until `end_s`; false when that is past. Called with the mutex held. */
static bool await_change(struct link *l, double end_s)
{
    struct timespec end = {.tv_sec = (time_t)fmin(end_s, 1e12)};
    end.tv_nsec = (long)fmin(fmax(end_s - (double)end.tv_sec, 0) * 1e9, 999999999);
    return pthread_cond_timedwait(&l->changed, &l->mutex, &end) != ETIMEDOUT;
}

/* ---- begin and end ---- */

/* Field 22 of /proc/self/stat; the second field may hold spaces and parentheses. */
static struct err *read_start_time(long long *out)
{
    char stat[1024];
    FILE *f = fopen("/proc/self/stat", "re");
    size_t length = f ? fread(stat, 1, sizeof stat - 1, f) : 0;
    if (f)
        fclose(f);
    stat[length] = '\0';
    const char *at = strrchr(stat, ')');
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    if (!at || sscanf(at, "%lld", out) != 1)
        return err_new(ERR_IO, "cannot read this process's start time from /proc/self/stat");
    return NULL;
}

static struct link *create(void)
{
    struct link *l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&l->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&l->mutex, NULL);
    l->journal.fd = l->wake_fd = -1;
    return l;
}

/* Signals are the main thread's. */
static struct err *start_thread(struct link *l)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&l->thread, NULL, connection_run, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    l->running = !failed;
    return failed ? err_errno(failed, "cannot start the link's thread") : NULL;
}

static struct err *await_welcome(struct link *l, double timeout_s)
{
    double end_s = link_now_s() + timeout_s;
    struct err *e = NULL;
    pthread_mutex_lock(&l->mutex);
    while (!l->welcome && !e) {
        if (l->refused)
            e = link_refusal(l);
        else if (!await_change(l, end_s) && !l->welcome)
            e = err_new(ERR_TIMEOUT, "no welcome from the daemon at %s within %.3g s%s%s",
                        l->socket_path, timeout_s, *l->trouble ? ": " : "", l->trouble);
    }
    pthread_mutex_unlock(&l->mutex);
    return e;
}

static struct err *begin(struct link *l, double timeout_s)
{
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake_fd < 0)
        return err_errno(errno, "cannot make an eventfd");
    if (sodium_init() < 0)
        return err_new(ERR_INTERNAL, "libsodium does not start");
    TRY(read_start_time(&l->start_time));
    char *path;
    if (asprintf(&path, "%s/%s.journal", l->directory, l->name) < 0)
        return err_no_memory();
    struct err *e = journal_open(path, &l->journal);
    free(path);
    TRY(e);
    TRY(start_thread(l));
    return await_welcome(l, timeout_s);
}

/* Last words for a daemon that is no longer listening. */
static struct err *write_exit(const struct link *l, const char *status, const struct err *e)
{
    cJSON *exit = cJSON_CreateObject();
    cJSON_AddStringToObject(exit, "status", status);
    if (e) {
        cJSON_AddStringToObject(exit, "kind", err_kind_name(err_kind(e)));
        cJSON_AddStringToObject(exit, "reason", err_message(e));
    }
    char *text = json_print(exit), *path = NULL;
    cJSON_Delete(exit);
    struct err *failed = err_no_memory();
    if (text && asprintf(&path, "%s/%s.exit", l->directory, l->name) >= 0)
        failed = file_replace(path, text, strlen(text));
    cJSON_free(text);
    free(path);
    return failed;
}

static void log_failure(struct err *e)
{
    if (e)
        log_error("%s", err_message(e));
    err_free(e);
}

/* Stops the thread and frees. */
static void destroy(struct link *l)
{
    if (l->running) {
        pthread_mutex_lock(&l->mutex);
        l->closing = true;
        pthread_mutex_unlock(&l->mutex);
        link_wake(l);
        pthread_join(l->thread, NULL);
    }
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    journal_close(&l->journal);
    pthread_mutex_destroy(&l->mutex);
    pthread_cond_destroy(&l->changed);
    cJSON_Delete(l->welcome);
    err_free(l->refused);
    free(l->directory);
    free(l->socket_path);
    free(l->secret);
    free(l);
}

struct err *link_open(int fd, double timeout_s, struct link **out)
{
    struct link *l = create();
    if (!l)
        return err_no_memory();
    double end_s = link_now_s() + timeout_s;
    /* First of all, so that a descriptor that is not open is not one of ours by now. */
    struct err *e = bootstrap_read(fd, timeout_s, l);
    if (!e) {
        e = begin(l, end_s - link_now_s());
        if (e)
            log_failure(write_exit(l, "error", e));
    }
    if (e)
        destroy(l);
    else
        *out = l;
    return e;
}

void link_close(struct link *l, const char *status, const struct err *e, double timeout_s)
{
    log_failure(write_exit(l, status, e));
    double end_s = link_now_s() + timeout_s;
    pthread_mutex_lock(&l->mutex);
    while (l->acked < l->journal.last_seq && !l->refused && await_change(l, end_s))
        ;
    pthread_mutex_unlock(&l->mutex);
    destroy(l);
}

const struct link_identity *link_identity(const struct link *l)
{
    return &l->identity;
}

const cJSON *link_welcome(const struct link *l)
{
    return l->welcome;
}

/* ---- records ---- */

/* JSON has no such numbers, so they go by name. */
static struct err *name_non_finite(cJSON *item)
{
    for (cJSON *child = item->child; child; child = child->next)
        TRY(name_non_finite(child));
    if (!cJSON_IsNumber(item) || isfinite(item->valuedouble))
        return NULL;
    double value = item->valuedouble;
    item->valuestring = cJSON_malloc(8);
    if (!item->valuestring)
        return err_no_memory();
    strcpy(item->valuestring, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    item->type = cJSON_String | (item->type & ~0xff);
    return NULL;
}

/* Under the mutex, so that the journal's order is that of seq. */
static struct err *append(struct link *l, const char *kind, const char *fields)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    char *line;
    int length = asprintf(&line,
                          "{\"type\":\"record\",\"seq\":%" PRId64 ",\"time\":%lld.%03ld,"
                          "\"kind\":\"%s\"%s%s\n",
                          l->journal.last_seq + 1, (long long)now.tv_sec, now.tv_nsec / 1000000,
                          kind, fields[1] == '}' ? "" : ",", fields + 1);
    if (length < 0)
        return err_no_memory();
    struct err *e = (size_t)length > LINE_BYTES
                        ? err_new(ERR_INVALID, "a \"%s\" record of %d bytes; at most %zu fit", kind,
                                  length, LINE_BYTES)
                        : journal_append(&l->journal, line, (size_t)length);
    free(line);
    return e;
}

static struct err *append_once(struct link *l, const char *kind, const char *text)
{
    pthread_mutex_lock(&l->mutex);
    struct err *e = l->refused ? link_refusal(l) : append(l, kind, text);
    pthread_mutex_unlock(&l->mutex);
    return e;
}

/* A disk that is full for a while costs no run: the record waits, and with it the rank, though for
 * a shorter time than the other ranks wait for it in a collective. */
static struct err *append_patiently(struct link *l, const char *kind, const char *text)
{
    double end_s = link_now_s() + DISK_PATIENCE_S;
    struct err *e = append_once(l, kind, text);
    if (e && err_kind(e) == ERR_IO)
        log_warning("%s; waiting for the disk", err_message(e));
    while (e && err_kind(e) == ERR_IO && link_now_s() < end_s && !(link_orders(l) & LINK_STOP)) {
        const struct timespec pause = {.tv_nsec = DISK_RETRY_NS};
        err_free(e);
        nanosleep(&pause, NULL);
        e = append_once(l, kind, text);
    }
    return e;
}

struct err *link_record(struct link *l, const char *kind, cJSON *fields)
{
    struct err *e = cJSON_IsObject(fields) ? name_non_finite(fields) : err_no_memory();
    char *text = e ? NULL : json_print(fields);
    cJSON_Delete(fields);
    if (!e && !text)
        e = err_no_memory();
    if (!e) {
        e = append_patiently(l, kind, text);
        link_wake(l);
    }
    cJSON_free(text);
    return e;
}

/* ---- meetings ---- */

static struct err *post_line(const char *key, const void *data, size_t bytes, char **out)
{
    size_t room = sodium_base64_encoded_len(bytes, BASE64);
    char *text = malloc(room);
    cJSON *message = cJSON_CreateObject();
    cJSON_AddStringToObject(message, "type", "exchange");
    cJSON_AddStringToObject(message, "key", key);
    if (text)
        sodium_bin2base64(text, room, data, bytes, BASE64);
    cJSON *added = text ? cJSON_AddStringToObject(message, "data", text) : NULL;
    char *json = added ? json_print(message) : NULL;
    bool made = json && asprintf(out, "%s\n", json) >= 0;
    cJSON_free(json);
    cJSON_Delete(message);
    free(text);
    return made ? NULL : err_no_memory();
}

static struct err *decode(const char *key, int rank, const cJSON *item, struct meeting_bytes *out)
{
    if (!cJSON_IsString(item))
        return err_new(ERR_INVALID, "meeting \"%s\": what rank %d posted is not a string", key,
                       rank);
    size_t length = strlen(item->valuestring);
    out->data = malloc(length + 1);
    if (!out->data)
        return err_no_memory();
    if (sodium_base642bin(out->data, length, item->valuestring, length, NULL, &out->bytes, NULL,
                          BASE64) != 0)
        return err_new(ERR_INVALID, "meeting \"%s\": what rank %d posted is not base64", key, rank);
    return NULL;
}

static struct err *decode_all(const char *key, const cJSON *answer, int world,
                              struct meeting_bytes *all)
{
    int count = cJSON_GetArraySize(answer);
    if (count != world)
        return err_new(ERR_INVALID, "meeting \"%s\": the daemon answered for %d ranks of %d", key,
                       count, world);
    memset(all, 0, (size_t)world * sizeof *all);
    struct err *e = NULL;
    const cJSON *item = answer->child;
    for (int r = 0; r < world && !e; r++, item = item->next)
        e = decode(key, r, item, &all[r]);
    if (e)
        meeting_free(all, world);
    return e;
}

/* Leaves the post in the list until it is answered, so that each new connection posts it again. */
static struct err *await_answer(struct link *l, struct link_post *post, double timeout_s)
{
    double end_s = link_now_s() + timeout_s;
    struct err *e = NULL;
    pthread_mutex_lock(&l->mutex);
    post->next = l->posts;
    l->posts = post;
    link_wake(l);
    while (!post->answer && !post->error && !e) {
        if (l->refused)
            e = link_refusal(l);
        else if (!await_change(l, end_s) && !post->answer && !post->error)
            e = err_new(ERR_TIMEOUT, "meeting \"%s\" was not complete after %g s%s%s", post->key,
                        timeout_s, *l->trouble ? ": " : "", l->trouble);
    }
    struct link_post **at = &l->posts;
    while (*at != post)
        at = &(*at)->next;
    *at = post->next;
    pthread_mutex_unlock(&l->mutex);
    return e ? e : post->error;
}

static struct err *exchange(void *user, const char *key, const void *data, size_t bytes, int world,
                            double timeout_s, struct meeting_bytes *all)
{
    if (bytes > POST_BYTES)
        return err_new(ERR_INVALID, "meeting \"%s\": a post of %zu bytes; at most %zu are taken",
                       key, bytes, POST_BYTES);
    char *line;
    TRY(post_line(key, data, bytes, &line));
    struct link_post post = {.key = key, .line = line, .line_bytes = strlen(line)};
    struct err *e = post.line_bytes > LINE_BYTES
                        ? err_new(ERR_INVALID, "a meeting's key of %zu bytes", strlen(key))
                        : await_answer(user, &post, timeout_s);
    if (!e)
        e = decode_all(key, post.answer, world, all);
    cJSON_Delete(post.answer);
    free(line);
    return e;
}

struct meeting link_meeting(struct link *l)
{
    return (struct meeting){.exchange = exchange, .user = l};
}

/* ---- orders ---- */

unsigned link_orders(const struct link *l)
{
    return atomic_load(&l->orders);
}

void link_clear(struct link *l, unsigned orders)
{
    atomic_fetch_and(&l->orders, ~orders);
}

void link_signal_stop(struct link *l)
{
    atomic_fetch_or(&l->orders, LINK_STOP);
}
