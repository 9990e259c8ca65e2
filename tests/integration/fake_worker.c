/* A worker that trains nothing: it speaks docs/worker-protocol.md to a real dllmd and misbehaves on
 * demand. What it shall do stands in the name of the job's spec, words with dots between:
 *
 *   step-ms=N     a step takes N milliseconds (default 2)
 *   die=R@S       rank R kills itself (SIGKILL) at step S
 *   exit=R@S      rank R ends without an exit file at step S
 *   error=R@S     rank R reports an error of kind `io` at step S and ends
 *   invalid=R@S   likewise of kind `invalid`
 *   once          the above happens in the first attempt only
 *   deaf          ignores orders and SIGTERM
 *   silent        begins, but never says `started`
 *   chatty=N      N records a step
 *
 * It has nothing to save, so after a pause it begins anew.
 *
 * When another rank fails, a rank whose connection gets `stop` ends as told: status `stopped`.
 * A task prepares an artifact that holds a manifest only, after reading its data; a data file that
 * contains the word POISON makes the task fail.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cjson/cJSON.h>

#include "daemon/control/process.h"

#define LINE_BYTES (2 << 20)

struct worker {
    char *socket_path, *directory, *secret;
    bool is_task;
    int job, attempt, rank, task;
    char name[32];
    int fd; /* -1: not connected */
    char *buffer;
    size_t bytes;
    FILE *journal;
    int64_t seq, acked;
    cJSON *welcome;
    cJSON *met; /* the answer to an exchange */
    bool stop;
    char behaviour[256];
};

static void die(const char *what)
{
    fprintf(stderr, "fake worker: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = calloc(1, LINE_BYTES);
    if (!f || !text)
        return NULL;
    size_t n = fread(text, 1, LINE_BYTES - 1, f);
    text[n] = '\0';
    fclose(f);
    return text;
}

static char *get_string(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(json, key);
    return cJSON_IsString(item) ? strdup(item->valuestring) : NULL;
}

static int get_int(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItem(json, key);
    return cJSON_IsNumber(item) ? item->valueint : -1;
}

static void read_bootstrap(struct worker *w)
{
    char line[65536];
    size_t n = 0;
    for (ssize_t got; (got = read(3, line + n, sizeof line - 1 - n)) > 0;)
        n += (size_t)got;
    line[n] = '\0';
    cJSON *json = n ? cJSON_Parse(line) : NULL;
    if (!json)
        exit(3); /* given up by the daemon */
    w->socket_path = get_string(json, "socket");
    w->directory = get_string(json, "directory");
    w->secret = get_string(json, "secret");
    w->is_task = cJSON_HasObjectItem(json, "task");
    w->task = get_int(json, "task");
    w->job = get_int(json, "job");
    w->attempt = get_int(json, "attempt");
    w->rank = w->is_task ? 0 : get_int(json, "rank");
    if (w->is_task)
        strcpy(w->name, "task");
    else
        snprintf(w->name, sizeof w->name, "rank-%d", w->rank);
    cJSON_Delete(json);
    close(3);
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.journal", w->directory, w->name);
    w->journal = fopen(path, "a+");
    if (!w->journal)
        die(path);
}

/* ---- The line ---- */

static void disconnect(struct worker *w)
{
    if (w->fd >= 0)
        close(w->fd);
    w->fd = -1;
    w->bytes = 0;
}

static void send_text(struct worker *w, const char *text)
{
    size_t n = strlen(text), at = 0;
    while (w->fd >= 0 && at < n) {
        ssize_t sent = send(w->fd, text + at, n - at, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            disconnect(w);
        at += sent > 0 ? (size_t)sent : 0;
    }
}

static void send_json(struct worker *w, cJSON *json)
{
    char *text = cJSON_PrintUnformatted(json);
    send_text(w, text);
    send_text(w, "\n");
    free(text);
    cJSON_Delete(json);
}

/* The next message within `ms`; NULL: none came. */
static cJSON *receive(struct worker *w, int ms)
{
    for (;;) {
        char *end = memchr(w->buffer, '\n', w->bytes);
        if (end) {
            *end = '\0';
            cJSON *json = cJSON_Parse(w->buffer);
            size_t n = (size_t)(end - w->buffer) + 1;
            memmove(w->buffer, w->buffer + n, w->bytes - n);
            w->bytes -= n;
            return json;
        }
        struct pollfd p = {.fd = w->fd, .events = POLLIN};
        if (w->fd < 0 || poll(&p, 1, ms) <= 0)
            return NULL;
        ssize_t n = recv(w->fd, w->buffer + w->bytes, LINE_BYTES - w->bytes, 0);
        if (n <= 0) {
            disconnect(w);
            return NULL;
        }
        w->bytes += (size_t)n;
    }
}

static void write_exit(const struct worker *w, const char *status, const char *kind,
                       const char *reason)
{
    char path[4096], partial[4200];
    snprintf(path, sizeof path, "%s/%s.exit", w->directory, w->name);
    snprintf(partial, sizeof partial, "%s.partial", path);
    FILE *f = fopen(partial, "w");
    if (!f)
        die(partial);
    fprintf(f, "{\"status\":\"%s\"", status);
    if (kind)
        fprintf(f, ",\"kind\":\"%s\"", kind);
    if (reason)
        fprintf(f, ",\"reason\":\"%s\"", reason);
    fprintf(f, "}\n");
    fflush(f);
    fsync(fileno(f));
    fclose(f);
    if (rename(partial, path) != 0)
        die(path);
}

/* Whether `word` is among the behaviour's words; "word=7" matches the word `word`, too. */
static bool does(const struct worker *w, const char *word, int *value)
{
    char copy[256], *rest = copy;
    size_t n = strlen(word);
    strcpy(copy, w->behaviour);
    for (char *part; (part = strsep(&rest, "."));) {
        if (strncmp(part, word, n) != 0 || (part[n] != '\0' && part[n] != '='))
            continue;
        if (value && part[n] == '=')
            *value = atoi(part + n + 1);
        return true;
    }
    return false;
}

static void take(struct worker *w, cJSON *json)
{
    char *type = get_string(json, "type");
    if (!type) {
        cJSON_Delete(json);
        return;
    }
    if (!strcmp(type, "ack")) {
        w->acked = get_int(json, "seq");
    } else if ((!strcmp(type, "stop") || !strcmp(type, "pause")) && !does(w, "deaf", NULL)) {
        w->stop = true;
    } else if (!strcmp(type, "refused")) {
        char *reason = get_string(json, "reason");
        fprintf(stderr, "refused: %s\n", reason);
        write_exit(w, "error", "aborted", "refused");
        exit(1);
    } else if (!strcmp(type, "exchange")) {
        cJSON_Delete(w->met);
        w->met = cJSON_Duplicate(json, true);
    } else if (!strcmp(type, "welcome") && !w->welcome) {
        w->welcome = cJSON_Duplicate(json, true);
    }
    if (!strcmp(type, "welcome"))
        w->acked = get_int(json, "acked");
    free(type);
    cJSON_Delete(json);
}

/* Sends all journal records after the last acknowledged one. */
static void resend(struct worker *w)
{
    static char line[LINE_BYTES];
    int64_t seq = 0;
    rewind(w->journal);
    while (fgets(line, sizeof line, w->journal))
        if (++seq > w->acked)
            send_text(w, line);
    fseek(w->journal, 0, SEEK_END);
}

/* True: connected and welcome. */
static bool dial(struct worker *w)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (w->fd >= 0)
        return true;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", w->socket_path);
    w->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(w->fd, (struct sockaddr *)&address, sizeof address) != 0) {
        disconnect(w);
        return false;
    }
    cJSON *hello = cJSON_CreateObject();
    cJSON_AddNumberToObject(hello, "v", 1);
    cJSON_AddStringToObject(hello, "type", "hello");
    if (w->is_task) {
        cJSON_AddNumberToObject(hello, "task", w->task);
    } else {
        cJSON_AddNumberToObject(hello, "job", w->job);
        cJSON_AddNumberToObject(hello, "attempt", w->attempt);
        cJSON_AddNumberToObject(hello, "rank", w->rank);
    }
    cJSON_AddStringToObject(hello, "secret", w->secret);
    cJSON_AddNumberToObject(hello, "pid", getpid());
    cJSON_AddNumberToObject(hello, "start_time", (double)process_start_time(getpid()));
    cJSON_AddNumberToObject(hello, "last_seq", (double)w->seq);
    send_json(w, hello);
    cJSON *answer = receive(w, 10000);
    if (!answer) {
        disconnect(w);
        return false;
    }
    take(w, answer);
    resend(w);
    return w->fd >= 0;
}

/* Whatever has come, and a new connection if the old one is lost. */
static void look(struct worker *w, int ms)
{
    if (w->fd < 0 && !dial(w)) {
        sleep_ms(ms > 20 ? 20 : ms);
        return;
    }
    for (cJSON *json; (json = receive(w, ms));) {
        take(w, json);
        ms = 0;
    }
}

/* `fields` is the inside of an object. */
static void record(struct worker *w, const char *kind, const char *fields)
{
    char line[4096];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(line, sizeof line,
             "{\"type\":\"record\",\"seq\":%lld,\"time\":%.3f,\"kind\":\"%s\"%s%s}\n",
             (long long)++w->seq, (double)now.tv_sec + (double)now.tv_nsec * 1e-9, kind,
             *fields ? "," : "", fields);
    fputs(line, w->journal);
    fflush(w->journal);
    send_text(w, line);
}

static void drain(struct worker *w)
{
    for (int i = 0; i < 500 && w->acked < w->seq; i++)
        look(w, 20);
}

/* ---- Ranks ---- */

static void misbehave(struct worker *w, int step)
{
    char word[64];
    if (does(w, "once", NULL) && w->attempt > 1)
        return;
    snprintf(word, sizeof word, "die=%d@%d", w->rank, step);
    if (does(w, word, NULL))
        raise(SIGKILL);
    snprintf(word, sizeof word, "exit=%d@%d", w->rank, step);
    if (does(w, word, NULL))
        _exit(7);
    const char *const kinds[][2] = {{"error", "io"}, {"invalid", "invalid"}};
    for (int i = 0; i < 2; i++) {
        snprintf(word, sizeof word, "%s=%d@%d", kinds[i][0], w->rank, step);
        if (!does(w, word, NULL))
            continue;
        char fields[160];
        snprintf(fields, sizeof fields, "\"error\":\"%s\",\"reason\":\"the fake disk is full\"",
                 kinds[i][1]);
        record(w, "error", fields);
        write_exit(w, "error", kinds[i][1], "the fake disk is full");
        drain(w);
        exit(1);
    }
}

static void train(struct worker *w)
{
    char fields[512];
    const cJSON *spec = cJSON_GetObjectItem(w->welcome, "spec");
    int steps = get_int(spec, "steps"), step_ms = 2, chatty = 0;
    char *name = get_string(spec, "name");
    snprintf(w->behaviour, sizeof w->behaviour, "%s", name);
    does(w, "step-ms", &step_ms);
    does(w, "chatty", &chatty);
    if (does(w, "deaf", NULL))
        signal(SIGTERM, SIG_IGN);
    fprintf(stderr, "rank %d of %d\n", w->rank, get_int(w->welcome, "world"));
    while (!w->met && !w->stop) {
        if (w->fd >= 0)
            send_json(w, cJSON_Parse("{\"type\":\"exchange\",\"key\":\"a/b\",\"data\":\"AAAA\"}"));
        look(w, 200);
    }
    if (!does(w, "silent", NULL))
        record(w, "started", "\"device\":\"cpu\",\"threads\":1,\"memory_bytes\":1000");
    for (int step = 1; step <= steps; step++) {
        look(w, 0);
        sleep_ms(step_ms);
        if (w->stop) {
            write_exit(w, "stopped", NULL, NULL);
            drain(w);
            exit(0);
        }
        misbehave(w, step);
        for (int i = 0; i < chatty; i++)
            record(w, "event", "\"event\":\"chat\",\"message\":\"talking\"");
        if (w->rank == 0) {
            snprintf(fields, sizeof fields,
                     "\"step\":%d,\"metrics\":{\"loss\":%.6f,\"lr\":0.001,\"step_s\":%.4f,"
                     "\"grad_norm\":%s}",
                     step, 5.0 / step, step_ms / 1000.0, step % 7 ? "1.5" : "\"nan\"");
            record(w, "step", fields);
        }
    }
    if (w->rank == 0) {
        snprintf(fields, sizeof fields,
                 "\"step\":%d,\"metrics\":{\"bound\":2.5,\"unigram_entropy\":3.1,\"tokens\":64}",
                 steps);
        record(w, "evaluation", fields);
    }
    record(w, "done", "");
    drain(w);
    write_exit(w, "done", NULL, NULL);
}

/* ---- Tasks ---- */

static void prepare(struct worker *w)
{
    const cJSON *task = cJSON_GetObjectItem(w->welcome, "task");
    char *directory = get_string(task, "datasets_directory");
    char *path = get_string(cJSON_GetObjectItem(task, "data"), "path");
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode) && asprintf(&path, "%s/train.jsonl", path) < 0)
        die(path);
    char *text = read_file(path), artifact[3000], manifest[3100], fields[4000];
    record(w, "started", "");
    record(w, "progress", "\"done\":1,\"total\":2,\"unit\":\"bytes\"");
    if (!text || strstr(text, "POISON")) {
        record(w, "error", "\"error\":\"invalid\",\"reason\":\"line 1 is poisoned\"");
        write_exit(w, "error", "invalid", "line 1 is poisoned");
        drain(w);
        exit(1);
    }
    if (strstr(text, "SLOW"))
        for (int i = 0; i < 3000 && !w->stop; i++)
            look(w, 10);
    if (w->stop) {
        write_exit(w, "stopped", NULL, NULL);
        exit(0);
    }
    unsigned long hash = 5381;
    for (char *p = text; *p; p++)
        hash = hash * 33 + (unsigned char)*p;
    snprintf(artifact, sizeof artifact, "%s/%016lx", directory, hash);
    mkdir(artifact, 0750);
    snprintf(manifest, sizeof manifest, "%s/manifest.json", artifact);
    FILE *f = fopen(manifest, "w");
    if (!f)
        die(manifest);
    fputs("{}\n", f);
    fclose(f);
    snprintf(fields, sizeof fields,
             "\"artifact\":\"%s\",\"hash\":\"%016lx\",\"documents\":1,\"tokens\":%zu,\"bytes\":%zu,"
             "\"unigram_entropy\":3.1",
             artifact, hash, strlen(text), strlen(text));
    record(w, "done", fields);
    drain(w);
    write_exit(w, "done", NULL, NULL);
}

int main(int argc, char **argv)
{
    struct worker w = {.fd = -1};
    bool task = argc > 1 && strcmp(argv[1], "--task") == 0;
    w.buffer = malloc(LINE_BYTES);
    read_bootstrap(&w);
    if (task != w.is_task)
        die("--task and the bootstrap disagree");
    while (!w.welcome)
        look(&w, 50);
    if (w.is_task)
        prepare(&w);
    else
        train(&w);
    return 0;
}
