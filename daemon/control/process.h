/* A process that is perhaps not our child, named by (pid, start time): a pid alone may be another
 * process by now. */
#ifndef CONTROL_PROCESS_H
#define CONTROL_PROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Field 22 of /proc/<pid>/stat, in clock ticks since boot. 0: there is no such process, and errno
 * is ESRCH; or errno says why that cannot be told. */
uint64_t process_start_time(pid_t pid);
/* A pidfd of that very process, close-on-exec. -1: it is gone (ESRCH), or errno likewise. */
int process_open(pid_t pid, uint64_t start_time);
/* Readable pidfd: the signal that killed it, 0 when it exited by itself, -1 when that is not known
 * (it is not our child). Reaps it if it is. */
int process_reap(int pidfd);
/* False: it is gone. */
bool process_signal(int pidfd, int signal);

#endif
