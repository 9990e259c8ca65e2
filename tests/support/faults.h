/* Faults on order: the n-th operation on a file, or the n-th allocation, fails or is the last that
 * the process does. A test that depends on faults_dep has the calls of its own code and of the
 * static libraries in it wrapped by the linker; shared libraries are not reached, but cJSON's
 * allocations are, through daemon/base/json.c.
 *
 * Operations are open, openat, read, pread, write, fsync, rename, mkdir, unlink and unlinkat;
 * allocations malloc, calloc, realloc, strdup, strndup and asprintf. They are counted over all
 * threads.
 */
#ifndef TESTS_FAULTS_H
#define TESTS_FAULTS_H

enum fault {
    FAULT_NONE,      /* count alone */
    FAULT_KILL,      /* SIGKILL just before the operation; of a write half is done */
    FAULT_FAIL,      /* ENOSPC where space is taken, EIO elsewhere; once */
    FAULT_FAIL_ON,   /* likewise from the n-th on */
    FAULT_NO_MEMORY, /* of an allocation; once */
};

/* Begins to count anew: the n-th (from 1) is the one. */
void faults_arm(enum fault fault, long n);
/* Ends it; returns how many operations (of FAULT_NO_MEMORY: allocations) there were since. */
long faults_disarm(void);

#endif
