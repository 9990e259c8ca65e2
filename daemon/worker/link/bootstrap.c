#include "daemon/worker/link/bootstrap.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/json.h"

#define VERSION 1
#define BOOTSTRAP_BYTES ((size_t)1 << 16)
#define SECRET_DIGITS 64

/* Reads until the newline or the end. */
static struct err *read_line(int fd, double timeout_s, char *line, size_t *length)
{
    double end_s = link_now_s() + timeout_s;
    *length = 0;
    for (;;) {
        double left_s = end_s - link_now_s();
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        int ready = left_s > 0 ? poll(&readable, 1, (int)(left_s * 1e3) + 1) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready == 0)
            return err_new(ERR_TIMEOUT, "no bootstrap came on descriptor %d within %g s", fd,
                           timeout_s);
        ssize_t n = read(fd, line + *length, BOOTSTRAP_BYTES - *length);
        if (n < 0 && errno != EINTR && errno != EAGAIN)
            return err_errno(errno,
                             "cannot read the bootstrap from descriptor %d, which dllmd "
                             "opens for its workers",
                             fd);
        if (n == 0)
            return NULL;
        *length += n > 0 ? (size_t)n : 0;
        if (memchr(line, '\n', *length))
            return NULL;
        if (*length == BOOTSTRAP_BYTES)
            return err_new(ERR_INVALID, "bootstrap: longer than %zu bytes", BOOTSTRAP_BYTES);
    }
}

static struct err *get_string(const cJSON *json, const char *key, char **out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    if (!cJSON_IsString(item) || !*item->valuestring)
        return err_new(ERR_INVALID, "bootstrap: \"%s\" must be a string that is not empty", key);
    *out = strdup(item->valuestring);
    return *out ? NULL : err_no_memory();
}

/* Whole numbers from `least` to 2^53. */
static struct err *get_number(const cJSON *json, const char *key, int64_t least, int64_t *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= (double)least) ||
        item->valuedouble > 0x1p53 || item->valuedouble != (double)(int64_t)item->valuedouble)
        return err_new(ERR_INVALID, "bootstrap: \"%s\" must be a whole number from %lld", key,
                       (long long)least);
    *out = (int64_t)item->valuedouble;
    return NULL;
}

static struct err *get_identity(const cJSON *json, struct link *l)
{
    struct link_identity *id = &l->identity;
    id->is_task = cJSON_HasObjectItem(json, "task");
    if (id->is_task) {
        TRY(get_number(json, "task", 1, &id->task));
        snprintf(l->name, sizeof l->name, "task");
        return NULL;
    }
    int64_t rank;
    TRY(get_number(json, "job", 1, &id->job));
    TRY(get_number(json, "attempt", 1, &id->attempt));
    TRY(get_number(json, "rank", 0, &rank));
    if (rank > INT32_MAX)
        return err_new(ERR_INVALID, "bootstrap: there is no rank %lld", (long long)rank);
    id->rank = (int)rank;
    snprintf(l->name, sizeof l->name, "rank-%d", id->rank);
    return NULL;
}

static struct err *get_all(const cJSON *json, struct link *l)
{
    int64_t version;
    TRY(get_number(json, "v", 1, &version));
    if (version != VERSION)
        return err_new(ERR_INVALID,
                       "bootstrap: version %lld of the protocol; this worker speaks %d",
                       (long long)version, VERSION);
    TRY(get_string(json, "directory", &l->directory));
    l->identity.directory = l->directory;
    TRY(get_identity(json, l));
    TRY(get_string(json, "socket", &l->socket_path));
    size_t longest = sizeof((struct sockaddr_un *)0)->sun_path - 1;
    if (strlen(l->socket_path) > longest)
        return err_new(ERR_INVALID, "bootstrap: socket %s: a socket's path has at most %zu bytes",
                       l->socket_path, longest);
    TRY(get_string(json, "secret", &l->secret));
    if (strspn(l->secret, "0123456789abcdef") != SECRET_DIGITS || l->secret[SECRET_DIGITS] != '\0')
        return err_new(ERR_INVALID, "bootstrap: \"secret\" must be %d hexadecimal digits",
                       SECRET_DIGITS);
    return NULL;
}

struct err *bootstrap_read(int fd, double timeout_s, struct link *l)
{
    char *line = malloc(BOOTSTRAP_BYTES);
    if (!line)
        return err_no_memory();
    size_t length;
    cJSON *json = NULL;
    struct err *e = read_line(fd, timeout_s, line, &length);
    close(fd);
    if (!e) {
        e = json_parse(line, length, &json);
        e = e ? err_wrap(e, "bootstrap") : get_all(json, l);
    }
    cJSON_Delete(json);
    free(line);
    return e;
}
