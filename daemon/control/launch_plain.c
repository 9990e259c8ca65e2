/* The plain way: posix_spawn in a session of its own, where nothing that happens to the daemon or
 * its terminal reaches it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/control/launch_ways.h"

/* What a worker may see of our environment; the sanitizers' are for tests. */
static const char *const kept[] = {
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "ASAN_OPTIONS",
    "UBSAN_OPTIONS",
    "LSAN_OPTIONS",
    "TSAN_OPTIONS",
};
#define KEPT (sizeof kept / sizeof kept[0])
#define ENVIRONMENT (KEPT + LAUNCH_VARIABLES + 1)

struct environment {
    char *items[ENVIRONMENT];
    size_t count;
};

static bool add(struct environment *e, const char *name, const char *value)
{
    if (asprintf(&e->items[e->count], "%s=%s", name, value) < 0) {
        e->items[e->count] = NULL;
        return false;
    }
    e->count++;
    return true;
}

static struct err *make_environment(const struct launch *l, struct environment *e)
{
    bool good = true;
    for (size_t i = 0; i < KEPT; i++) {
        const char *value = getenv(kept[i]);
        if (value)
            good = good && add(e, kept[i], value);
    }
    char *variables[LAUNCH_VARIABLES];
    good = launch_variables(l, variables) && good;
    for (int i = 0; i < LAUNCH_VARIABLES; i++)
        if (variables[i])
            e->items[e->count++] = variables[i];
    return good ? NULL : err_no_memory();
}

static struct err *open_log(const struct launch *l, int *out)
{
    char *path = NULL;
    if (asprintf(&path, "%s/%s.log", l->directory, l->name) < 0)
        return err_no_memory();
    *out = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    struct err *err = *out < 0 ? err_errno(errno, "cannot open %s", path) : NULL;
    free(path);
    return err;
}

/* Returns an errno. */
static int spawn(const struct launch *l, int log, int bootstrap, char **environment, pid_t *pid)
{
    char *const argv[] = {(char *)l->program, l->is_task ? (char *)"--task" : NULL, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    sigset_t none, all;
    int rc = posix_spawn_file_actions_init(&actions);
    if (rc != 0)
        return rc;
    if ((rc = posix_spawnattr_init(&attributes)) != 0) {
        posix_spawn_file_actions_destroy(&actions);
        return rc;
    }
    sigemptyset(&none);
    sigfillset(&all);
    if ((rc = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0)) == 0 &&
        (rc = posix_spawn_file_actions_adddup2(&actions, log, 1)) == 0 &&
        (rc = posix_spawn_file_actions_adddup2(&actions, log, 2)) == 0 &&
        (rc = posix_spawn_file_actions_adddup2(&actions, bootstrap, 3)) == 0 &&
        (rc = posix_spawn_file_actions_addclosefrom_np(&actions, 4)) == 0 &&
        (rc = posix_spawn_file_actions_addchdir_np(&actions, l->directory)) == 0 &&
        (rc = posix_spawnattr_setsigmask(&attributes, &none)) == 0 &&
        (rc = posix_spawnattr_setsigdefault(&attributes, &all)) == 0 &&
        (rc = posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGMASK |
                                                        POSIX_SPAWN_SETSIGDEF)) == 0)
        rc = posix_spawn(pid, l->program, &actions, &attributes, argv, environment);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return rc;
}

static struct err *start(const struct launch *l, struct launched *out, int log)
{
    struct environment environment = {0};
    int ends[2];
    struct err *err = make_environment(l, &environment);
    if (!err && pipe2(ends, O_CLOEXEC) != 0)
        err = err_errno(errno, "cannot make a pipe");
    if (!err) {
        int rc = spawn(l, log, ends[0], environment.items, &out->pid);
        close(ends[0]);
        out->bootstrap = ends[1];
        if (rc != 0)
            err = err_errno(rc, "cannot start %s", l->program);
        if (rc != 0)
            close(ends[1]);
    }
    for (size_t i = 0; i < environment.count; i++)
        free(environment.items[i]);
    return err;
}

struct err *launch_plain(const struct launch *l, struct launched *out)
{
    int log = -1;
    TRY(open_log(l, &log));
    struct err *err = start(l, out, log);
    close(log);
    return err;
}
