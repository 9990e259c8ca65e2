#include "store/checkpoint_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/file.h"

#define DELETING_PREFIX ".deleting-"
/* Deeper than anything that is written here. */
#define MAX_DEPTH 8
/* Deletions of one name that were all cut short: nobody gets there. */
#define MAX_DELETIONS 10000

/* ---- Names ---- */

void checkpoint_name(int64_t step, char name[static CHECKPOINT_NAME_BYTES])
{
    snprintf(name, CHECKPOINT_NAME_BYTES, "step-%09" PRId64, step);
}

void checkpoint_temporary_name(const char *kind, int64_t attempt, int64_t step, int64_t number,
                               char name[static CHECKPOINT_NAME_BYTES])
{
    snprintf(name, CHECKPOINT_NAME_BYTES, ".%s-%" PRId64 "-step-%09" PRId64 "-%" PRId64, kind,
             attempt, step, number);
}

static bool parse_name(const char *text, int64_t *step)
{
    char name[CHECKPOINT_NAME_BYTES];
    if (sscanf(text, "step-%" SCNd64, step) != 1 || *step < 0)
        return false;
    checkpoint_name(*step, name);
    return strcmp(text, name) == 0; /* the one spelling of this number */
}

static bool parse_temporary_name(const char *text, int64_t *attempt, int64_t *number)
{
    static const char *const kinds[] = {CHECKPOINT_PARTIAL, CHECKPOINT_ABORTED};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char name[CHECKPOINT_NAME_BYTES];
        int64_t step;
        size_t n = strlen(kinds[i]);
        if (text[0] != '.' || strncmp(text + 1, kinds[i], n) != 0 ||
            sscanf(text + 1 + n, "-%" SCNd64 "-step-%" SCNd64 "-%" SCNd64, attempt, &step,
                   number) != 3)
            continue;
        checkpoint_temporary_name(kinds[i], *attempt, step, *number, name);
        if (strcmp(text, name) == 0)
            return true;
    }
    return false;
}

/* ---- Removing ---- */

static struct err *remove_at(int at, const char *path, const char *name, int depth);

static struct err *remove_entries(int fd, const char *path, int depth)
{
    DIR *dir = fdopendir(fd);
    if (!dir) {
        struct err *e = err_errno(errno, "%s", path);
        close(fd);
        return e;
    }
    struct err *first = NULL;
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        struct err *e = remove_at(dirfd(dir), path, entry->d_name, depth);
        if (first)
            err_free(e);
        else
            first = e;
    }
    closedir(dir);
    return first;
}

/* `path` is that of the whole tree, for messages. */
static struct err *remove_at(int at, const char *path, const char *name, int depth)
{
    if (unlinkat(at, name, 0) == 0 || errno == ENOENT)
        return NULL;
    if (errno != EISDIR && errno != EPERM)
        return err_errno(errno, "%s: %s cannot be removed", path, name);
    if (depth == 0)
        return err_new(ERR_INVALID, "%s: %s lies too deep to have been written by a checkpoint",
                       path, name);
    int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? NULL : err_errno(errno, "%s: %s cannot be removed", path, name);
    TRY(remove_entries(fd, path, depth - 1));
    if (unlinkat(at, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        return err_errno(errno, "%s: %s cannot be removed", path, name);
    return NULL;
}

struct err *checkpoint_remove_tree(const char *path)
{
    return remove_at(AT_FDCWD, path, path, MAX_DEPTH);
}

/* Renames directory/name to a deletion's name that is free, which is the caller's. */
static struct err *rename_away(const char *directory, const char *name, char **out)
{
    char *from, *to = NULL;
    struct err *e = NULL;
    int error = EEXIST;
    if (asprintf(&from, "%s/%s", directory, name) < 0)
        return err_no_memory();
    for (int i = 0; i < MAX_DELETIONS && !e && (error == EEXIST || error == ENOTEMPTY); i++) {
        free(to);
        if (asprintf(&to, "%s/" DELETING_PREFIX "%s.%d", directory, name, i) < 0) {
            to = NULL;
            e = err_no_memory();
        } else {
            error = rename(from, to) == 0 ? 0 : errno;
        }
    }
    if (!e && error == ENOENT)
        e = err_new(ERR_NOT_FOUND, "%s does not exist", from);
    else if (!e && error)
        e = err_errno(error, "%s cannot be renamed to be removed", from);
    free(from);
    if (e)
        free(to);
    else
        *out = to;
    return e;
}

struct err *checkpoint_discard(const char *directory, const char *name)
{
    char *path = NULL;
    TRY(rename_away(directory, name, &path));
    /* The old name must not come back, after a power cut, with some of its files gone. */
    struct err *e = file_sync_directory(directory);
    if (!e)
        e = checkpoint_remove_tree(path);
    free(path);
    return e;
}

struct err *checkpoint_remove(const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    char *copy = strndup(path, n);
    if (!copy)
        return err_no_memory();
    char *slash = strrchr(copy, '/');
    struct err *e;
    if (slash)
        *slash = 0;
    if (!slash)
        e = checkpoint_discard(".", copy);
    else
        e = checkpoint_discard(slash == copy ? "/" : copy, slash + 1);
    free(copy);
    return e;
}

/* ---- Looking through the directory ---- */

static struct err *open_directory(const char *path, DIR **out)
{
    *out = opendir(path);
    if (*out)
        return NULL;
    return errno == ENOENT ? err_new(ERR_NOT_FOUND, "%s does not exist", path)
                           : err_errno(errno, "%s", path);
}

static int by_number(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

struct err *checkpoint_list(const char *directory, int64_t **steps, size_t *count)
{
    DIR *dir;
    int64_t step;
    struct err *e = NULL;
    *steps = NULL;
    *count = 0;
    TRY(open_directory(directory, &dir));
    for (struct dirent *entry; !e && (entry = readdir(dir));) {
        if (!parse_name(entry->d_name, &step))
            continue;
        int64_t *grown = realloc(*steps, (*count + 1) * sizeof *grown);
        if (!grown) {
            e = err_no_memory();
            break;
        }
        *steps = grown;
        grown[(*count)++] = step;
    }
    closedir(dir);
    if (e) {
        free(*steps);
        *steps = NULL;
        *count = 0;
    } else if (*count > 0) {
        qsort(*steps, *count, sizeof **steps, by_number);
    }
    return e;
}

static struct err *sweep_one(const char *directory, const char *name, int64_t attempt,
                             int64_t number)
{
    int64_t a, n;
    if (strncmp(name, DELETING_PREFIX, strlen(DELETING_PREFIX)) == 0) {
        char *path;
        TRY(file_sync_directory(directory)); /* as checkpoint_discard does, and may not have yet */
        if (asprintf(&path, "%s/%s", directory, name) < 0)
            return err_no_memory();
        struct err *e = checkpoint_remove_tree(path);
        free(path);
        return e;
    }
    if (!parse_temporary_name(name, &a, &n) || a > attempt || (a == attempt && n >= number))
        return NULL;
    struct err *e = checkpoint_discard(directory, name);
    if (e && err_kind(e) == ERR_NOT_FOUND) { /* its writer, or another sweep, was faster */
        err_free(e);
        e = NULL;
    }
    return e;
}

struct err *checkpoint_sweep(const char *directory, int64_t attempt, int64_t number)
{
    DIR *dir;
    struct err *first = NULL;
    TRY(open_directory(directory, &dir));
    for (struct dirent *entry; (entry = readdir(dir));) {
        struct err *e = sweep_one(directory, entry->d_name, attempt, number);
        if (first)
            err_free(e);
        else
            first = e;
    }
    closedir(dir);
    return first;
}

struct err *checkpoint_clean(const char *directory, int64_t attempt)
{
    return checkpoint_sweep(directory, attempt, INT64_MAX);
}
