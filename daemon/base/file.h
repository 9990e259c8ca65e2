/* Files whole, and files that are either the old one or the new one whenever the machine stops. */
#ifndef BASE_FILE_H
#define BASE_FILE_H

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

/* fsync of a directory, which makes the names in it durable. */
struct err *file_sync_directory(const char *path);
/* Likewise of the directory that holds `path`. */
struct err *file_sync_parent(const char *path);

#endif
