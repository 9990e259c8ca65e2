/* The way over systemd: an instance of dllm-worker@.service for each worker.
 *
 * A unit inherits no descriptor from who asks for it, so the bootstrap takes this way: the daemon
 * listens on a socket of the instance's name in its runtime directory, and the unit has that socket
 * as its standard input (StandardInput=file:…), to which systemd connects in the process that is to
 * become the worker. What the daemon accepts is then just what a pipe is in the plain way: the
 * worker waits on its end, and reads the end of file when nobody tells it who it is. If this daemon
 * dies before it has accepted, the connection is refused and the unit fails; nothing begins. The
 * credentials of the peer are the worker's pid, and must be what systemd calls the unit's main
 * process. Nobody but root and this daemon can reach the directory.
 *
 * Instances of a template, and no transient units, since polkit can allow a user to start units by
 * name, whereas who may start transient units may start anything (deploy/dllmd.rules).
 *
 * Each call opens a connection of its own to the bus: they are few, they come from several threads,
 * and a bus that was started anew needs no care.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-bus.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/file.h"
#include "daemon/base/log.h"
#include "daemon/control/directory.h"
#include "daemon/control/launch_ways.h"

#define TEMPLATE "dllm-worker@.service"
#define UNIT_RUNTIME "/run/dllmd" /* where TEMPLATE looks for its socket */
#define CALL_USEC ((uint64_t)10 * 1000000)
#define START_S 60.0
#define ENDED_S 5.0
#define LOOK_AGAIN_MS 20
/* Exit statuses of what never began: the worker's own (docs/worker-protocol.md), and systemd's. */
#define NOT_BEGUN 75
#define SYSTEMD_STATUSES 200

#define SYSTEMD "org.freedesktop.systemd1"
#define MANAGER_PATH "/org/freedesktop/systemd1"
#define MANAGER "org.freedesktop.systemd1.Manager"
#define UNIT "org.freedesktop.systemd1.Unit"
#define SERVICE "org.freedesktop.systemd1.Service"

struct launcher {
    char *directory; /* of the sockets; only ours */
};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- The bus ---- */

static struct err *bus_open(sd_bus **bus)
{
    int rc = sd_bus_open_system(bus);
    if (rc < 0)
        return err_errno(-rc, "cannot reach systemd: there is no connection to the system bus");
    sd_bus_set_method_call_timeout(*bus, CALL_USEC);
    return NULL;
}

/* Takes the content of e. `what` is a sentence's beginning: "cannot start x". */
static struct err *bus_error(int rc, sd_bus_error *e, const char *what, const char *unit)
{
    struct err *err = err_new(ERR_IO, "%s %s: systemd says: %s", what, unit,
                              e->message ? e->message : strerror(-rc));
    sd_bus_error_free(e);
    return err;
}

struct unit {
    char name[LAUNCH_INSTANCE_BYTES + 32];
    char *path; /* on the bus */
};

static struct err *name_unit(const char *instance, struct unit *out)
{
    snprintf(out->name, sizeof out->name, "dllm-worker@%s.service", instance);
    out->path = NULL;
    return sd_bus_path_encode(MANAGER_PATH "/unit", out->name, &out->path) < 0 ? err_no_memory()
                                                                               : NULL;
}

/* ---- Opening ---- */

static struct err *check_template(void)
{
    sd_bus *bus = NULL;
    sd_bus_error e = SD_BUS_ERROR_NULL;
    TRY(bus_open(&bus));
    int rc = sd_bus_call_method(bus, SYSTEMD, MANAGER_PATH, MANAGER, "GetUnitFileState", &e, NULL,
                                "s", TEMPLATE);
    struct err *err = rc < 0 ? bus_error(rc, &e, "cannot use", TEMPLATE) : NULL;
    sd_bus_flush_close_unref(bus);
    return err;
}

/* A daemon that died while it started workers could not tidy up. */
static struct err *empty_directory(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir)
        return err_errno(errno, "cannot read %s", path);
    for (const struct dirent *d; (d = readdir(dir));)
        if (d->d_name[0] != '.')
            unlinkat(dirfd(dir), d->d_name, 0);
    closedir(dir);
    return NULL;
}

static struct err *open_units(const char *runtime_directory, struct launcher *l)
{
    if (strcmp(runtime_directory, UNIT_RUNTIME) != 0)
        return err_new(ERR_INVALID,
                       "runtime_directory is %s, but " TEMPLATE " looks for its daemon "
                       "in " UNIT_RUNTIME,
                       runtime_directory);
    TRY(check_template());
    if (asprintf(&l->directory, "%s/launch", runtime_directory) < 0) {
        l->directory = NULL;
        return err_no_memory();
    }
    TRY(directory_make(l->directory));
    if (chmod(l->directory, 0700) != 0)
        return err_errno(errno, "cannot keep %s for us", l->directory);
    return empty_directory(l->directory);
}

struct err *launcher_open(enum launch_choice choice, const char *runtime_directory,
                          struct launcher **out)
{
    *out = NULL;
    if (choice == LAUNCH_PLAIN)
        return NULL;
    if (choice == LAUNCH_AUTO && (!getenv("NOTIFY_SOCKET") || !getenv("INVOCATION_ID")))
        return NULL;
    struct launcher *l = calloc(1, sizeof *l);
    struct err *err = l ? open_units(runtime_directory, l) : err_no_memory();
    if (!err) {
        umask(0007);
        log_info("workers are started as units, dllm-worker@*.service");
        *out = l;
        return NULL;
    }
    launcher_close(l);
    if (choice == LAUNCH_AUTO && err_kind(err) != ERR_NO_MEMORY) {
        log_warning("workers are started as processes of this service, not as units of their own: "
                    "%s",
                    err_message(err));
        err_free(err);
        err = NULL;
    }
    return err;
}

void launcher_close(struct launcher *l)
{
    if (l)
        free(l->directory);
    free(l);
}

/* ---- What lies in the directory while a worker starts ---- */

struct place {
    struct sockaddr_un address;
    char *environment; /* path */
    int listener;
};

static struct err *write_environment(const char *path, const struct launch *launch)
{
    char *variables[LAUNCH_VARIABLES], *text = NULL;
    struct err *err = NULL;
    if (!launch_variables(launch, variables) ||
        asprintf(&text, "%s\n%s\n%s\n", variables[0], variables[1], variables[2]) < 0) {
        text = NULL;
        err = err_no_memory();
    }
    int fd = err ? -1 : open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (!err && fd < 0)
        err = err_errno(errno, "cannot write %s", path);
    if (!err)
        err = file_write_all(fd, path, text, strlen(text));
    if (fd >= 0)
        close(fd);
    for (int i = 0; i < LAUNCH_VARIABLES; i++)
        free(variables[i]);
    free(text);
    return err;
}

static struct err *open_listener(struct place *p)
{
    const char *path = p->address.sun_path;
    p->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->listener < 0)
        return err_errno(errno, "cannot make a socket");
    unlink(path); /* of a daemon that is dead */
    if (bind(p->listener, (const struct sockaddr *)&p->address, sizeof p->address) != 0 ||
        listen(p->listener, 1) != 0)
        return err_errno(errno, "cannot listen at %s", path);
    return NULL;
}

static struct err *make_place(const struct launch *launch, struct place *p)
{
    const char *directory = launch->launcher->directory;
    p->address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(p->address.sun_path, sizeof p->address.sun_path, "%s/%s", directory,
                     launch->instance);
    if ((size_t)n >= sizeof p->address.sun_path)
        return err_new(ERR_INVALID, "%s/%s is too long for a socket", directory, launch->instance);
    if (asprintf(&p->environment, "%s/%s.env", directory, launch->instance) < 0) {
        p->environment = NULL;
        return err_no_memory();
    }
    TRY(write_environment(p->environment, launch));
    return open_listener(p);
}

static void remove_place(struct place *p)
{
    if (p->listener >= 0) {
        unlink(p->address.sun_path);
        close(p->listener);
    }
    if (p->environment)
        unlink(p->environment);
    free(p->environment);
}

/* ---- Starting ---- */

struct start {
    const struct unit *unit;
    sd_bus *bus;
    char *job;    /* path of systemd's job */
    char *result; /* of it, once it is over: "done", or why not */
    bool no_memory;
    int accepted;
    pid_t peer;
};

static int on_job_removed(sd_bus_message *message, void *user, sd_bus_error *e)
{
    (void)e;
    struct start *s = user;
    const char *path, *unit, *result;
    uint32_t id;
    if (sd_bus_message_read(message, "uoss", &id, &path, &unit, &result) < 0 || s->result ||
        !s->job || strcmp(path, s->job) != 0)
        return 0;
    s->result = strdup(result);
    s->no_memory = !s->result;
    return 0;
}

static struct err *ask(struct start *s)
{
    sd_bus_error e = SD_BUS_ERROR_NULL;
    sd_bus_message *reply = NULL;
    const char *job;
    int rc = sd_bus_match_signal(s->bus, NULL, SYSTEMD, MANAGER_PATH, MANAGER, "JobRemoved",
                                 on_job_removed, s);
    if (rc >= 0)
        rc = sd_bus_call_method(s->bus, SYSTEMD, MANAGER_PATH, MANAGER, "Subscribe", &e, NULL, "");
    if (rc >= 0)
        rc = sd_bus_call_method(s->bus, SYSTEMD, MANAGER_PATH, MANAGER, "StartUnit", &e, &reply,
                                "ss", s->unit->name, "replace");
    if (rc >= 0)
        rc = sd_bus_message_read(reply, "o", &job);
    struct err *err = rc < 0 ? bus_error(rc, &e, "cannot start", s->unit->name) : NULL;
    if (!err && !(s->job = strdup(job)))
        err = err_no_memory();
    sd_bus_message_unref(reply);
    return err;
}

static struct err *accept_worker(struct start *s, int listener)
{
    struct ucred peer;
    socklen_t size = sizeof peer;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED
                   ? NULL
                   : err_errno(errno, "cannot accept %s", s->unit->name);
    s->accepted = fd;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return err_errno(errno, "cannot tell who %s is", s->unit->name);
    s->peer = peer.pid;
    return NULL;
}

/* Dispatches what the bus has, then waits for more of it or for the worker. */
static struct err *turn(struct start *s, int listener, double deadline_s)
{
    int rc;
    do
        rc = sd_bus_process(s->bus, NULL);
    while (rc > 0);
    if (rc < 0)
        return err_errno(-rc, "lost the connection to systemd while it started %s", s->unit->name);
    if (s->no_memory)
        return err_no_memory();
    if (s->result)
        return NULL;
    int events = sd_bus_get_events(s->bus);
    struct pollfd polls[2] = {
        {.fd = sd_bus_get_fd(s->bus), .events = (short)(events < 0 ? POLLIN : events)},
        {.fd = s->accepted < 0 ? listener : -1, .events = POLLIN},
    };
    double left_s = deadline_s - now_s();
    if (left_s <= 0)
        return err_new(ERR_TIMEOUT, "systemd did not start %s within %g s", s->unit->name, START_S);
    if (poll(polls, 2, (int)(left_s * 1000) + 1) < 0 && errno != EINTR)
        return err_errno(errno, "cannot wait for %s", s->unit->name);
    return polls[1].revents ? accept_worker(s, listener) : NULL;
}

/* That it is started means that the worker's program runs (Type=exec), and so that its standard
 * input was connected before. */
static struct err *wait_for_worker(struct start *s, int listener)
{
    double deadline_s = now_s() + START_S;
    while (!s->result)
        TRY(turn(s, listener, deadline_s));
    if (strcmp(s->result, "done") != 0)
        return err_new(ERR_IO, "systemd cannot start %s (%s); journalctl -u '%s' tells why",
                       s->unit->name, s->result, s->unit->name);
    if (s->accepted < 0)
        TRY(accept_worker(s, listener));
    return s->accepted >= 0
               ? NULL
               : err_new(ERR_CONFLICT, "%s runs already, or is not ours", s->unit->name);
}

static struct err *check_main_process(struct start *s)
{
    sd_bus_error e = SD_BUS_ERROR_NULL;
    uint32_t pid = 0;
    int rc = sd_bus_get_property_trivial(s->bus, SYSTEMD, s->unit->path, SERVICE, "MainPID", &e,
                                         'u', &pid);
    if (rc < 0)
        return bus_error(rc, &e, "cannot ask for the process of", s->unit->name);
    if (pid == 0)
        return err_new(ERR_IO, "%s ended at once; journalctl -u '%s' tells why", s->unit->name,
                       s->unit->name);
    if ((pid_t)pid != s->peer)
        return err_new(ERR_CONFLICT, "the process %d presents itself as %s, which is %u",
                       (int)s->peer, s->unit->name, pid);
    return NULL;
}

struct err *launch_unit(const struct launch *launch, struct launched *out)
{
    struct place place = {.listener = -1};
    struct unit unit = {0};
    struct start s = {.unit = &unit, .accepted = -1};
    struct err *err = name_unit(launch->instance, &unit);
    if (!err)
        err = make_place(launch, &place);
    if (!err)
        err = bus_open(&s.bus);
    if (!err)
        err = ask(&s);
    if (!err)
        err = wait_for_worker(&s, place.listener);
    if (!err)
        err = check_main_process(&s);
    sd_bus_flush_close_unref(s.bus);
    remove_place(&place);
    if (err && s.accepted >= 0)
        close(s.accepted);
    if (!err) {
        out->pid = s.peer;
        out->bootstrap = s.accepted;
    }
    free(s.job);
    free(s.result);
    free(unit.path);
    return err;
}

/* ---- Signals ---- */

struct err *launch_unit_signal(const char *instance, int signal)
{
    struct unit unit;
    sd_bus *bus = NULL;
    sd_bus_error e = SD_BUS_ERROR_NULL;
    struct err *err = name_unit(instance, &unit);
    if (!err)
        err = bus_open(&bus);
    int rc = err ? 0
                 : sd_bus_call_method(bus, SYSTEMD, MANAGER_PATH, MANAGER, "KillUnit", &e, NULL,
                                      "ssi", unit.name, "all", signal);
    if (rc < 0)
        err = bus_error(rc, &e, "cannot signal", unit.name);
    sd_bus_flush_close_unref(bus);
    free(unit.path);
    return err;
}

/* ---- The end ---- */

struct unit_end {
    bool over, failed;
    int signal;
};

static int signal_of(int code, int status)
{
    if (code == CLD_KILLED || code == CLD_DUMPED)
        return status;
    return code == CLD_EXITED && status != NOT_BEGUN && status < SYSTEMD_STATUSES ? 0 : -1;
}

static struct err *look(sd_bus *bus, const struct unit *unit, struct unit_end *out)
{
    sd_bus_error e = SD_BUS_ERROR_NULL;
    char *state = NULL;
    int32_t code = 0, status = 0;
    int rc = sd_bus_get_property_string(bus, SYSTEMD, unit->path, UNIT, "ActiveState", &e, &state);
    if (rc >= 0)
        rc = sd_bus_get_property_trivial(bus, SYSTEMD, unit->path, SERVICE, "ExecMainCode", &e, 'i',
                                         &code);
    if (rc >= 0)
        rc = sd_bus_get_property_trivial(bus, SYSTEMD, unit->path, SERVICE, "ExecMainStatus", &e,
                                         'i', &status);
    struct err *err = rc < 0 ? bus_error(rc, &e, "cannot ask for the end of", unit->name) : NULL;
    if (!err) {
        out->failed = strcmp(state, "failed") == 0;
        out->over = out->failed || strcmp(state, "inactive") == 0;
        out->signal = signal_of(code, status);
    }
    free(state);
    return err;
}

static struct err *forget(sd_bus *bus, const struct unit *unit)
{
    sd_bus_error e = SD_BUS_ERROR_NULL;
    int rc = sd_bus_call_method(bus, SYSTEMD, MANAGER_PATH, MANAGER, "ResetFailedUnit", &e, NULL,
                                "s", unit->name);
    return rc < 0 ? bus_error(rc, &e, "cannot tidy up", unit->name) : NULL;
}

static struct err *see_end(sd_bus *bus, const struct unit *unit, int *signal)
{
    struct unit_end end;
    double deadline_s = now_s() + ENDED_S;
    for (;;) {
        TRY(look(bus, unit, &end));
        if (end.over || now_s() >= deadline_s)
            break;
        nanosleep(&(struct timespec){.tv_nsec = LOOK_AGAIN_MS * 1000000L}, NULL);
    }
    *signal = end.over ? end.signal : -1;
    return end.failed ? forget(bus, unit) : NULL;
}

int launch_ended(struct launcher *l, const char *instance)
{
    struct unit unit = {0};
    sd_bus *bus = NULL;
    int signal = -1;
    if (!l)
        return -1;
    struct err *err = name_unit(instance, &unit);
    if (!err)
        err = bus_open(&bus);
    if (!err)
        err = see_end(bus, &unit, &signal);
    if (err)
        log_warning("%s", err_message(err));
    err_free(err);
    sd_bus_flush_close_unref(bus);
    free(unit.path);
    return signal;
}
