#include "daemon/control/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* *fd: the open, locked file with our pid in it, or -1. */
static struct err *take(const struct lock *lock, int *fd)
{
    char other[32] = "";
    struct err *err = NULL;
    *fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC, 0640);
    if (*fd < 0)
        return err_errno(errno, "cannot open %s", lock->path);
    if (flock(*fd, LOCK_EX | LOCK_NB) != 0) {
        int why = errno;
        ssize_t n = pread(*fd, other, sizeof other - 1, 0);
        other[n > 0 ? n : 0] = '\0';
        other[strcspn(other, "\n")] = '\0';
        err = why == EWOULDBLOCK ? err_new(ERR_CONFLICT, "another dllmd (process %s) serves %s",
                                           other, lock->directory)
                                 : err_errno(why, "cannot lock %s", lock->path);
    } else {
        int n = snprintf(other, sizeof other, "%d\n", (int)getpid());
        if (ftruncate(*fd, 0) != 0 || pwrite(*fd, other, (size_t)n, 0) != n)
            err = err_errno(errno, "cannot write %s", lock->path);
    }
    if (err) {
        close(*fd);
        *fd = -1;
    }
    return err;
}

struct err *lock_take(struct lock *lock, const char *directory, const char *name)
{
    *lock = (struct lock){.directory = directory, .fd = -1};
    if (asprintf(&lock->path, "%s/%s", directory, name) < 0) {
        lock->path = NULL;
        return err_no_memory();
    }
    return take(lock, &lock->fd);
}

struct err *lock_keep(struct lock *lock)
{
    struct stat ours, there;
    int fd;
    if (lock->fd >= 0 && fstat(lock->fd, &ours) == 0 && stat(lock->path, &there) == 0 &&
        ours.st_dev == there.st_dev && ours.st_ino == there.st_ino)
        return NULL;
    TRY(take(lock, &fd));
    if (lock->fd >= 0)
        close(lock->fd);
    lock->fd = fd;
    return NULL;
}

void lock_release(struct lock *lock)
{
    if (lock->fd >= 0)
        close(lock->fd);
    free(lock->path);
    *lock = (struct lock){.fd = -1};
}
