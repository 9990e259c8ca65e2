#include "daemon/control/directory.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

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
