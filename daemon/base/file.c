#include "daemon/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Linux moves at most a little less than 2 GiB in one call anyway. */
#define CHUNK_BYTES ((size_t)1 << 30)

static struct err *read_open(int fd, const char *path, size_t max_bytes, char **out, size_t *length)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return err_errno(errno, "%s", path);
    if (!S_ISREG(st.st_mode))
        return err_new(ERR_INVALID, "%s is not a regular file", path);
    if ((size_t)st.st_size > max_bytes)
        return err_new(ERR_INVALID, "%s has %lld bytes but may have at most %zu", path,
                       (long long)st.st_size, max_bytes);
    size_t size = (size_t)st.st_size, used = 0;
    char *text = malloc(size + 1);
    if (!text)
        return err_no_memory();
    while (used < size) {
        ssize_t n = read(fd, text + used, size - used);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            struct err *e = err_errno(errno, "%s", path);
            free(text);
            return e;
        }
        if (n == 0)
            break; /* somebody shortened it meanwhile */
        used += (size_t)n;
    }
    text[used] = 0;
    *out = text;
    *length = used;
    return NULL;
}

struct err *file_read(const char *path, size_t max_bytes, char **out, size_t *length)
{
    *out = NULL;
    *length = 0;
    /* Non-blocking, so that a FIFO in this place is refused instead of waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT)
        return err_new(ERR_NOT_FOUND, "%s does not exist", path);
    if (fd < 0)
        return err_errno(errno, "%s", path);
    struct err *e = read_open(fd, path, max_bytes, out, length);
    close(fd);
    return e;
}

struct err *file_write_all(int fd, const char *path, const void *bytes, size_t length)
{
    const char *p = bytes;
    while (length > 0) {
        ssize_t n = write(fd, p, length < CHUNK_BYTES ? length : CHUNK_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(errno, "%s", path);
        p += n;
        length -= (size_t)n;
    }
    return NULL;
}

struct err *file_sync_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(errno, "%s", path);
    struct err *e = fsync(fd) == 0 ? NULL : err_errno(errno, "%s", path);
    close(fd);
    return e;
}

struct err *file_sync_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return file_sync_directory(".");
    if (slash == path)
        return file_sync_directory("/");
    char *parent = strndup(path, (size_t)(slash - path));
    if (!parent)
        return err_no_memory();
    struct err *e = file_sync_directory(parent);
    free(parent);
    return e;
}

static struct err *write_partial(const char *partial, const void *bytes, size_t length)
{
    int fd = open(partial, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0)
        return err_errno(errno, "%s", partial);
    struct err *e = file_write_all(fd, partial, bytes, length);
    if (!e && fsync(fd) != 0)
        e = err_errno(errno, "%s", partial);
    if (close(fd) != 0 && !e)
        e = err_errno(errno, "%s", partial);
    return e;
}

struct err *file_replace(const char *path, const void *bytes, size_t length)
{
    char *partial;
    if (asprintf(&partial, "%s.partial", path) < 0)
        return err_no_memory();
    struct err *e = write_partial(partial, bytes, length);
    if (!e && rename(partial, path) != 0)
        e = err_errno(errno, "%s: cannot be renamed to %s", partial, path);
    if (e)
        unlink(partial);
    free(partial);
    return e ? e : file_sync_parent(path);
}

struct err *file_expect_unmoved(const char *path)
{
    char *now = realpath(path, NULL);
    if (!now)
        return errno == ENOENT ? err_new(ERR_NOT_FOUND, "%s does not exist any more", path)
                               : err_errno(errno, "cannot resolve %s", path);
    struct err *e = strcmp(now, path)
                        ? err_new(ERR_INVALID,
                                  "%s leads to %s since the job was submitted: submit "
                                  "it again if that is meant",
                                  path, now)
                        : NULL;
    free(now);
    return e;
}

bool file_is_under(const char *resolved, const char *root)
{
    size_t n = strlen(root);
    if (n == 1) /* "/" */
        return true;
    return strncmp(resolved, root, n) == 0 && (resolved[n] == '/' || resolved[n] == '\0');
}

static bool is_within(const char *real, const struct file_roots *roots)
{
    bool within = false;
    for (size_t i = 0; i < roots->count && !within; i++) {
        char *root = realpath(roots->paths[i], NULL);
        within = root && file_is_under(real, root);
        free(root);
    }
    return within;
}

struct err *file_expect_within(const char *path, const struct file_roots *roots)
{
    if (!roots)
        return NULL;
    char *real = realpath(path, NULL);
    if (!real)
        return errno == ENOENT ? NULL : err_errno(errno, "cannot resolve %s", path);
    struct err *e = NULL;
    if (!is_within(real, roots)) {
        char list[1024] = "";
        for (size_t i = 0, used = 0; i < roots->count && used < sizeof list; i++)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "",
                                     roots->paths[i]);
        bool link = strcmp(real, path) != 0;
        e = err_new(ERR_INVALID,
                    "%s%s%s lies outside of the directories that this daemon reads from: %s", path,
                    link ? ", which leads to " : "", link ? real : "", list);
    }
    free(real);
    return e;
}
