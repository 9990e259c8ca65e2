/* Every key stands once in the table below: its name, its type, its range and where it goes. */
#include "daemon/control/config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "api/doc.h"
#include "daemon/base/file.h"
#include "daemon/base/text.h"
#include "daemon/plan/problems.h"

#define FILE_BYTES ((size_t)1 << 20)
#define DEFAULT_PORT 8470
#define SLOTS_MOST 4096

enum type { TEXT, ROOTS, HOSTS, INTEGER, NUMBER, SECONDS, BOOLEAN, LEVEL, LAUNCHER };

static const struct key {
    const char *name;
    enum type type;
    size_t offset;
    double least, most;
} keys[] = {
#define KEY(name, type, least, most)                                                               \
    {                                                                                              \
#name, type, offsetof(struct config, name), least, most                                    \
    }
    KEY(listen_address, TEXT, 0, 0),
    KEY(listen_port, INTEGER, 0, 65535),
    KEY(insecure, BOOLEAN, 0, 0),
    KEY(auth, BOOLEAN, 0, 0),
    KEY(tls_certificate, TEXT, 0, 0),
    KEY(tls_key, TEXT, 0, 0),
    KEY(hosts, HOSTS, 0, 0),
    KEY(requests_per_s, NUMBER, 0, 1e6),
    KEY(state_directory, TEXT, 0, 0),
    KEY(runtime_directory, TEXT, 0, 0),
    KEY(roots, ROOTS, 0, 0),
    KEY(launcher, LAUNCHER, 0, 0),
    KEY(worker, TEXT, 0, 0),
    KEY(cuda_plugin, TEXT, 0, 0),
    KEY(slots, INTEGER, 1, SLOTS_MOST),
    KEY(lease_s, SECONDS, 1, 86400),
    KEY(stop_timeout_s, SECONDS, 0, 86400),
    KEY(term_timeout_s, SECONDS, 0, 86400),
    KEY(stall_timeout_s, SECONDS, 1, 604800),
    KEY(backoff_s, SECONDS, 0, 3600),
    KEY(log_level, LEVEL, 0, 0),
#undef KEY
};
#define KEYS (sizeof keys / sizeof keys[0])

static const char *const levels[] = {
    [LOG_LEVEL_DEBUG] = "debug",
    [LOG_LEVEL_INFO] = "info",
    [LOG_LEVEL_WARNING] = "warning",
    [LOG_LEVEL_ERROR] = "error",
};

static void set_text(char **to, const char *text, const char *pointer, struct problems *problems)
{
    char *copy = strdup(text);
    if (!copy) {
        problems_add_err(problems, pointer, err_no_memory());
        return;
    }
    free(*to);
    *to = copy;
}

static void free_list(char ***list, size_t *count)
{
    for (size_t i = 0; i < *count; i++)
        free((*list)[i]);
    free(*list);
    *list = NULL;
    *count = 0;
}

static void add_to_list(char ***list, size_t *count, const char *text, const char *pointer,
                        struct problems *problems)
{
    char **grown = realloc(*list, (*count + 1) * sizeof *grown);
    char *copy = strdup(text);
    if (grown)
        *list = grown;
    if (!grown || !copy) {
        free(copy);
        problems_add_err(problems, pointer, err_no_memory());
        return;
    }
    (*list)[(*count)++] = copy;
}

/* ---- The file ---- */

static bool is_path(const char *text)
{
    return text[0] == '/';
}

/* A DNS name, without a port. */
static bool is_name(const char *text)
{
    for (const char *p = text; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '.' && *p != '-' && *p != '_')
            return false;
    return text[0] && strlen(text) < 256;
}

static void read_list(char ***list, size_t *count, const char *pointer, const cJSON *json,
                      bool (*good)(const char *text), const char *what, struct problems *problems)
{
    const cJSON *item;
    int i = 0;
    if (!cJSON_IsArray(json)) {
        problems_add(problems, pointer, "must be an array, each element %s", what);
        return;
    }
    free_list(list, count);
    cJSON_ArrayForEach(item, json)
    {
        char element[64];
        snprintf(element, sizeof element, "%s/%d", pointer, i++);
        if (!cJSON_IsString(item) || !good(item->valuestring))
            problems_add(problems, element, "must be %s", what);
        else
            add_to_list(list, count, item->valuestring, element, problems);
    }
}

static void read_level(struct config *c, const cJSON *item, struct problems *problems)
{
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, levels[i]) == 0) {
            c->log_level = (enum log_level)i;
            return;
        }
    }
    problems_add(problems, "/log_level", "must be \"debug\", \"info\", \"warning\" or \"error\"");
}

static void read_launcher(struct config *c, const cJSON *item, struct problems *problems)
{
    static const char *const launchers[] = {
        [LAUNCH_AUTO] = "auto",
        [LAUNCH_PLAIN] = "plain",
        [LAUNCH_SYSTEMD] = "systemd",
    };
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        if (cJSON_IsString(item) && strcmp(item->valuestring, launchers[i]) == 0) {
            c->launcher = (enum launch_choice)i;
            return;
        }
    }
    problems_add(problems, "/launcher", "must be \"auto\", \"plain\" or \"systemd\"");
}

static void read_key(struct config *c, const struct key *key, const cJSON *item,
                     struct problems *problems)
{
    void *to = (char *)c + key->offset;
    char pointer[64];
    snprintf(pointer, sizeof pointer, "/%s", key->name);
    double value = item->valuedouble;
    bool in_range = cJSON_IsNumber(item) && value >= key->least && value <= key->most;
    switch (key->type) {
    case TEXT:
        if (cJSON_IsString(item) && item->valuestring[0])
            set_text(to, item->valuestring, pointer, problems);
        else
            problems_add(problems, pointer, "must be a string that is not empty");
        break;
    case ROOTS:
        read_list(&c->roots, &c->root_count, pointer, item, is_path, "an absolute path", problems);
        break;
    case HOSTS:
        read_list(&c->hosts, &c->host_count, pointer, item, is_name, "a name without a port",
                  problems);
        break;
    case INTEGER:
        if (!in_range || value != floor(value))
            problems_add(problems, pointer, "must be a whole number from %g to %g", key->least,
                         key->most);
        else if (key->offset == offsetof(struct config, slots))
            c->slots = (int64_t)value;
        else
            *(int *)to = (int)value;
        break;
    case NUMBER:
    case SECONDS:
        if (in_range)
            *(double *)to = value;
        else
            problems_add(problems, pointer, "must be a number%s from %g to %g",
                         key->type == SECONDS ? " of seconds" : "", key->least, key->most);
        break;
    case BOOLEAN:
        if (cJSON_IsBool(item))
            *(bool *)to = cJSON_IsTrue(item);
        else
            problems_add(problems, pointer, "must be true or false");
        break;
    case LAUNCHER:
        read_launcher(c, item, problems);
        break;
    case LEVEL:
        read_level(c, item, problems);
        break;
    }
}

static void read_object(struct config *c, const cJSON *json, struct problems *problems)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, json)
    {
        size_t i = 0;
        while (i < KEYS && strcmp(keys[i].name, item->string) != 0)
            i++;
        if (i < KEYS) {
            read_key(c, &keys[i], item, problems);
            continue;
        }
        char pointer[128], known[640];
        size_t used = 0;
        for (i = 0; i < KEYS && used < sizeof known; i++)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
                                     keys[i].name);
        snprintf(pointer, sizeof pointer, "/%s", item->string);
        problems_add(problems, pointer, "is no setting; there are %s", known);
    }
}

static struct err *read_file(struct config *c, const struct config_flags *flags,
                             struct problems *problems)
{
    const char *path = flags->file ? flags->file : CONFIG_DEFAULT_FILE;
    char *text = NULL;
    size_t bytes;
    cJSON *json = NULL;
    struct err *err = file_read(path, FILE_BYTES, &text, &bytes);
    if (err && !flags->file && err_kind(err) == ERR_NOT_FOUND) {
        err_free(err);
        return NULL;
    }
    if (!err)
        err = doc_read_object(text, bytes, path, &json);
    if (!err)
        read_object(c, json, problems);
    cJSON_Delete(json);
    free(text);
    return err;
}

/* ---- Flags ---- */

static void read_listen(struct config *c, const char *text, struct problems *problems)
{
    const char *colon = strrchr(text, ':');
    char address[64], *end;
    size_t n = colon ? (size_t)(colon - text) : 0;
    long port = colon ? strtol(colon + 1, &end, 10) : -1;
    bool bracketed = n > 2 && text[0] == '[' && text[n - 1] == ']';
    if (!colon || n == 0 || n >= sizeof address || end == colon + 1 || *end || port < 0 ||
        port > 65535) {
        problems_add(problems, "--listen", "must be ADDRESS:PORT, as 127.0.0.1:8470 or [::1]:8470");
        return;
    }
    snprintf(address, sizeof address, "%.*s", (int)(bracketed ? n - 2 : n), text + bracketed);
    set_text(&c->listen_address, address, "--listen", problems);
    c->listen_port = (int)port;
}

static void read_flags(struct config *c, const struct config_flags *flags,
                       struct problems *problems)
{
    if (flags->state_directory)
        set_text(&c->state_directory, flags->state_directory, "--state", problems);
    if (flags->worker)
        set_text(&c->worker, flags->worker, "--worker", problems);
    if (flags->listen)
        read_listen(c, flags->listen, problems);
    if (flags->slots) {
        char *end;
        long slots = strtol(flags->slots, &end, 10);
        if (end == flags->slots || *end || slots < 1 || slots > SLOTS_MOST)
            problems_add(problems, "--slots", "must be a whole number from 1 to %d", SLOTS_MOST);
        else
            c->slots = slots;
    }
}

/* ---- Defaults ---- */

static char *join(const char *a, const char *b)
{
    char *path = NULL;
    return asprintf(&path, "%s%s", a, b) < 0 ? NULL : path;
}

/* systemd's StateDirectory=, else by who runs it. */
static char *default_state(void)
{
    const char *systemd = getenv("STATE_DIRECTORY"), *xdg = getenv("XDG_STATE_HOME"),
               *home = getenv("HOME");
    if (systemd && systemd[0] == '/')
        return strndup(systemd, strcspn(systemd, ":"));
    if (geteuid() == 0)
        return strdup("/var/lib/dllmd");
    if (xdg && xdg[0] == '/')
        return join(xdg, "/dllmd");
    return home && home[0] == '/' ? join(home, "/.local/state/dllmd") : strdup("/var/lib/dllmd");
}

/* systemd's RuntimeDirectory=, unless the state lies elsewhere than systemd put it: two daemons do
 * not share one. */
static char *default_runtime(const struct config *c)
{
    const char *state = getenv("STATE_DIRECTORY"), *runtime = getenv("RUNTIME_DIRECTORY");
    if (state && runtime && runtime[0] == '/' && strcmp(state, c->state_directory) == 0)
        return strndup(runtime, strcspn(runtime, ":"));
    return join(c->state_directory, "/run");
}

/* The first that exists of where an installation, and where a build, puts it; else the first. */
static char *beside_us(const char *const *places)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return NULL;
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (!slash)
        return NULL;
    *slash = '\0';
    char *first = NULL;
    for (size_t i = 0; places[i]; i++) {
        char *path = join(self, places[i]);
        if (path && access(path, F_OK) == 0) {
            free(first);
            return path;
        }
        if (first)
            free(path);
        else
            first = path;
    }
    return first;
}

static struct err *set_defaults(struct config *c)
{
    static const char *const workers[] = {"/dllm-worker", "/../worker/dllm-worker",
                                          "/../libexec/dllmd/dllm-worker", NULL};
    static const char *const plugins[] = {"/libdllm-cuda.so", "/../../kernels/libdllm-cuda.so",
                                          "/../lib/dllmd/libdllm-cuda.so", NULL};
    *c = (struct config){
        .listen_address = strdup("127.0.0.1"),
        .listen_port = DEFAULT_PORT,
        .state_directory = default_state(),
        .worker = beside_us(workers),
        .cuda_plugin = beside_us(plugins),
        .slots = sysconf(_SC_NPROCESSORS_ONLN),
        .requests_per_s = 200,
        .lease_s = 600,
        .stop_timeout_s = 60,
        .term_timeout_s = 20,
        .stall_timeout_s = 1800,
        .backoff_s = 2,
        .log_level = LOG_LEVEL_INFO,
    };
    if (c->slots < 1)
        c->slots = 1;
    return c->listen_address && c->state_directory && c->worker && c->cuda_plugin ? NULL
                                                                                  : err_no_memory();
}

/* Where no roots are given: the user's home, the state directory, and where models, data and
 * packaged texts usually lie. */
static void default_roots(struct config *c, struct problems *problems)
{
    const char *home = getenv("HOME");
    if (home && home[0] == '/' && home[1])
        add_to_list(&c->roots, &c->root_count, home, "/roots", problems);
    add_to_list(&c->roots, &c->root_count, c->state_directory, "/roots", problems);
    add_to_list(&c->roots, &c->root_count, "/usr/share", "/roots", problems);
    add_to_list(&c->roots, &c->root_count, "/srv", "/roots", problems);
    add_to_list(&c->roots, &c->root_count, "/models", "/roots", problems);
}

static void make_absolute(char **path, const char *pointer, struct problems *problems)
{
    char cwd[PATH_MAX];
    if (!*path || (*path)[0] == '/' || !getcwd(cwd, sizeof cwd))
        return;
    char *joined = NULL;
    if (asprintf(&joined, "%s/%s", cwd, *path) < 0) {
        problems_add_err(problems, pointer, err_no_memory());
        return;
    }
    free(*path);
    *path = joined;
}

/* ---- All together ---- */

/* What others can reach is encrypted and asks for tokens, or is opened to them in so many words. */
static void check_listen(const struct config *c, struct problems *problems)
{
    unsigned char address[sizeof(struct in6_addr)];
    if (inet_pton(AF_INET, c->listen_address, address) != 1 &&
        inet_pton(AF_INET6, c->listen_address, address) != 1)
        problems_add(problems, "/listen_address",
                     "is \"%s\" but must be an IPv4 or IPv6 address in numbers", c->listen_address);
    else if (!api_is_loopback(c->listen_address) && !c->insecure && !c->tls_certificate)
        problems_add(problems, "/listen_address",
                     "is %s, which others can reach: that needs \"tls_certificate\" and "
                     "\"tls_key\" (and asks for tokens), or \"insecure\": true; a loopback address "
                     "(127.0.0.1, ::1) needs neither",
                     c->listen_address);
}

static void check_tls(const struct config *c, struct problems *problems)
{
    if (!c->tls_certificate && !c->tls_key)
        return;
    if (!c->tls_certificate || !c->tls_key) {
        problems_add(problems, c->tls_key ? "/tls_certificate" : "/tls_key",
                     "is missing: a certificate and its key go together");
        return;
    }
    struct err *err = api_check_tls(c->tls_certificate, c->tls_key);
    if (err)
        problems_add_err(problems, "/tls_certificate", err_wrap(err, "cannot be used"));
}

/* The workers' socket must fit into a struct sockaddr_un. */
static void check_runtime(const struct config *c, struct problems *problems)
{
    size_t n = strlen(c->runtime_directory) + strlen("/worker.sock");
    if (n > 107)
        problems_add(problems, "/runtime_directory",
                     "has %zu characters, but a socket's path below it may have at most %d",
                     strlen(c->runtime_directory), (int)(107 - strlen("/worker.sock")));
}

static struct err *as_err(const struct problems *problems)
{
    struct text list = {.no_memory = problems->no_memory};
    for (size_t i = 0; i < problems->count; i++)
        text_print(&list, "%s%s %s", i ? "\n" : "", problems->items[i].path,
                   problems->items[i].message);
    char *text = text_take(&list);
    struct err *err = text ? err_new(ERR_INVALID, "%s", text) : err_no_memory();
    free(text);
    return err;
}

struct err *config_load(const struct config_flags *flags, struct config *out)
{
    struct problems problems = {0};
    struct err *err = set_defaults(out);
    if (!err)
        err = read_file(out, flags, &problems);
    if (!err) {
        read_flags(out, flags, &problems);
        make_absolute(&out->state_directory, "/state_directory", &problems);
        make_absolute(&out->worker, "/worker", &problems);
        make_absolute(&out->tls_certificate, "/tls_certificate", &problems);
        make_absolute(&out->tls_key, "/tls_key", &problems);
        if (!out->runtime_directory)
            out->runtime_directory = default_runtime(out);
        else
            make_absolute(&out->runtime_directory, "/runtime_directory", &problems);
        if (!out->roots)
            default_roots(out, &problems);
        if (!out->runtime_directory)
            err = err_no_memory();
    }
    if (!err) {
        check_listen(out, &problems);
        check_tls(out, &problems);
        check_runtime(out, &problems);
        if (problems_count(&problems))
            err = as_err(&problems);
    }
    problems_free(&problems);
    return err;
}

void config_free(struct config *c)
{
    free(c->listen_address);
    free(c->state_directory);
    free(c->runtime_directory);
    free_list(&c->roots, &c->root_count);
    free_list(&c->hosts, &c->host_count);
    free(c->tls_certificate);
    free(c->tls_key);
    free(c->worker);
    free(c->cuda_plugin);
    *c = (struct config){0};
}
