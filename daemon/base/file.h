/* Files whole, and files that are either the old one or the new one whenever the machine stops. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/base/err.h"

/* The whole file, NUL-terminated behind *length bytes; freed by the caller. Refuses what is not a
 * regular file or is longer than max_bytes. ERR_NOT_FOUND where there is none. */
struct err *file_read(const char *path, size_t max_bytes, char **out, size_t *length);

/* Writes `<path>.partial`, syncs it, renames it over `path` and syncs the directory. One writer a
 * path at a time. */
struct err *file_replace(const char *path, const void *bytes, size_t length);

/* All of it, however often write(2) is interrupted. `path` is for the message. */
struct err *file_write_all(int fd, const char *path, const void *bytes, size_t length);

/* `path` was resolved before: that no part of it has become a link since, which would lead
 * elsewhere. ERR_INVALID, or ERR_NOT_FOUND where it is gone. */
struct err *file_expect_unmoved(const char *path);

/* Whether a path without links is `root` or lies under it. */
bool file_is_under(const char *resolved, const char *root);

/* Directories that files may lie in, once the links of both are followed. */
struct file_roots {
    const char *const *paths;
    size_t count;
};
/* ERR_INVALID for a file that leads out of all roots; NULL for roots: nothing is out. A path where
 * nothing is passes: whoever opens it says so. */
struct err *file_expect_within(const char *path, const struct file_roots *roots);

/* fsync of a directory, which makes the names in it durable. */
struct err *file_sync_directory(const char *path);
/* Likewise of the directory that holds `path`. */
struct err *file_sync_parent(const char *path);

#endif
