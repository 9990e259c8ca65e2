#include "tests/support/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_int armed; /* enum fault */
static atomic_long count, target;

/* Whether this is the operation that fails. */
static bool strikes(bool allocation)
{
    int fault = armed;
    if (allocation != (fault == FAULT_NO_MEMORY))
        return false;
    long n = atomic_fetch_add(&count, 1) + 1;
    switch (fault) {
    case FAULT_KILL:
    case FAULT_FAIL:
    case FAULT_NO_MEMORY:
        return n == target;
    case FAULT_FAIL_ON:
        return n >= target;
    default:
        return false;
    }
}

/* True: the operation fails with errno set. */
static bool fails(int error)
{
    if (!strikes(false))
        return false;
    if (armed == FAULT_KILL)
        raise(SIGKILL);
    errno = error;
    return true;
}

/* ---- Files ---- */

#define WRAP(type, name, parameters)                                                               \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters

/* The mode is always there: passing it on where the caller gave none does no harm. */
#define WRAP_OPEN(name)                                                                            \
    int __real_##name(const char *path, int flags, mode_t mode);                                   \
    int __wrap_##name(const char *path, int flags, mode_t mode);                                   \
    int __wrap_##name(const char *path, int flags, mode_t mode)                                    \
    {                                                                                              \
        return fails(flags & O_CREAT ? ENOSPC : EIO) ? -1 : __real_##name(path, flags, mode);      \
    }
#define WRAP_OPENAT(name)                                                                          \
    int __real_##name(int at, const char *path, int flags, mode_t mode);                           \
    int __wrap_##name(int at, const char *path, int flags, mode_t mode);                           \
    int __wrap_##name(int at, const char *path, int flags, mode_t mode)                            \
    {                                                                                              \
        return fails(flags & O_CREAT ? ENOSPC : EIO) ? -1 : __real_##name(at, path, flags, mode);  \
    }
WRAP_OPEN(open)
WRAP_OPEN(open64)
WRAP_OPENAT(openat)
WRAP_OPENAT(openat64)

WRAP(ssize_t, read, (int fd, void *bytes, size_t n))
{
    return fails(EIO) ? -1 : __real_read(fd, bytes, n);
}

WRAP(ssize_t, pread, (int fd, void *bytes, size_t n, off_t at))
{
    return fails(EIO) ? -1 : __real_pread(fd, bytes, n, at);
}

WRAP(ssize_t, pread64, (int fd, void *bytes, size_t n, off64_t at))
{
    return fails(EIO) ? -1 : __real_pread64(fd, bytes, n, at);
}

WRAP(ssize_t, write, (int fd, const void *bytes, size_t n))
{
    if (!strikes(false))
        return __real_write(fd, bytes, n);
    ssize_t half = __real_write(fd, bytes, n / 2);
    if (armed == FAULT_KILL)
        raise(SIGKILL);
    (void)half;
    errno = ENOSPC;
    return -1;
}

WRAP(int, fsync, (int fd))
{
    return fails(EIO) ? -1 : __real_fsync(fd);
}

WRAP(int, rename, (const char *from, const char *to))
{
    return fails(ENOSPC) ? -1 : __real_rename(from, to);
}

WRAP(int, mkdir, (const char *path, mode_t mode))
{
    return fails(ENOSPC) ? -1 : __real_mkdir(path, mode);
}

WRAP(int, unlink, (const char *path))
{
    return fails(EIO) ? -1 : __real_unlink(path);
}

WRAP(int, unlinkat, (int at, const char *path, int flags))
{
    return fails(EIO) ? -1 : __real_unlinkat(at, path, flags);
}

/* ---- Memory ---- */

static bool no_memory(void)
{
    if (!strikes(true))
        return false;
    errno = ENOMEM;
    return true;
}

WRAP(void *, malloc, (size_t bytes))
{
    return no_memory() ? NULL : __real_malloc(bytes);
}

WRAP(void *, calloc, (size_t n, size_t bytes))
{
    return no_memory() ? NULL : __real_calloc(n, bytes);
}

WRAP(void *, realloc, (void *old, size_t bytes))
{
    return no_memory() ? NULL : __real_realloc(old, bytes);
}

WRAP(char *, strdup, (const char *text))
{
    return no_memory() ? NULL : __real_strdup(text);
}

WRAP(char *, strndup, (const char *text, size_t n))
{
    return no_memory() ? NULL : __real_strndup(text, n);
}

int __wrap_asprintf(char **out, const char *format, ...) __attribute__((format(printf, 2, 3)));
int __wrap_asprintf(char **out, const char *format, ...)
{
    *out = NULL;
    if (no_memory())
        return -1;
    va_list args;
    va_start(args, format);
    int n = vasprintf(out, format, args);
    va_end(args);
    return n;
}

/* ---- Orders ---- */

void faults_arm(enum fault fault, long n)
{
    count = 0;
    target = n;
    armed = (int)fault;
}

long faults_disarm(void)
{
    armed = FAULT_NONE;
    return count;
}
