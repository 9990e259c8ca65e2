#include "daemon/control/directory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "daemon/base/file.h"
#include "daemon/base/log.h"

#define NAMES_TRIED 1000

struct err *directory_make(const char *path)
{
    char *copy = strdup(path);
    if (!copy)
        return err_no_memory();
    struct err *err = NULL;
    for (char *p = copy + 1; !err; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char end = *p;
        *p = '\0';
        if (mkdir(copy, 0770) != 0 && errno != EEXIST)
            err = err_errno(errno, "cannot make the directory %s", copy);
        *p = end;
        if (end == '\0')
            break;
    }
    free(copy);
    return err;
}

/* A name that nothing has: the time, and a number if that is not enough. NULL: no memory. */
static char *free_name(const char *path)
{
    for (int i = 0; i < NAMES_TRIED; i++) {
        char *name = NULL, number[16] = "";
        struct stat st;
        if (i)
            snprintf(number, sizeof number, "-%d", i);
        if (asprintf(&name, "%s.old-%lld%s", path, (long long)time(NULL), number) < 0)
            return NULL;
        if (lstat(name, &st) != 0)
            return name;
        free(name);
    }
    return NULL;
}

struct err *directory_set_aside(const char *path)
{
    struct stat st;
    if (lstat(path, &st) != 0)
        return errno == ENOENT ? NULL : err_errno(errno, "cannot look at %s", path);
    char *aside = free_name(path);
    if (!aside)
        return err_no_memory();
    struct err *err = NULL;
    if (rename(path, aside) != 0)
        err = err_errno(errno, "cannot rename %s, which an earlier life left, to %s", path, aside);
    if (!err)
        err = file_sync_parent(path);
    if (!err)
        log_warning("%s was there already, of an earlier life of this state directory: it is %s "
                    "now",
                    path, aside);
    free(aside);
    return err;
}
