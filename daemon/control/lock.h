/* A directory that one process uses at a time. The lock is a file in it that flock(2) holds, so it
 * goes with the process, however that ends. */
#ifndef CONTROL_LOCK_H
#define CONTROL_LOCK_H

#include "daemon/base/err.h"

struct lock {
    const char *directory; /* the caller's; outlives the lock */
    char *path;
    int fd; /* -1: not held */
};

/* Makes `name` in the directory, which must be there, and locks it. ERR_CONFLICT names the process
 * that has it. lock_release() even after an error. */
struct err *lock_take(struct lock *lock, const char *directory, const char *name);
/* Takes it again if the path leads to our file no more: others would lock what it leads to now. */
struct err *lock_keep(struct lock *lock);
/* A lock that is all zero but for fd = -1 is fine. */
void lock_release(struct lock *lock);

#endif
