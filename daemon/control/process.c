#include "daemon/control/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef P_PIDFD
#define P_PIDFD 3
#endif

uint64_t process_start_time(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (errno == ENOENT)
            errno = ESRCH;
        return 0;
    }
    ssize_t n = read(fd, text, sizeof text - 1);
    int why = n == 0 ? ESRCH : errno;
    close(fd);
    if (n <= 0) {
        errno = why;
        return 0;
    }
    text[n] = '\0';
    /* The name (field 2) may hold anything; the fields go on behind its last parenthesis. */
    char *p = strrchr(text, ')');
    for (int field = 2; p && field < 22; field++) {
        p = strchr(p + 1, ' ');
    }
    return p ? strtoull(p + 1, NULL, 10) : 0;
}

int process_open(pid_t pid, uint64_t start_time)
{
    int fd = pid > 0 ? pidfd_open(pid, 0) : -1;
    if (pid <= 0)
        errno = ESRCH;
    if (fd < 0)
        return -1;
    /* Looked at after the descriptor is held, so it cannot become another process any more. */
    uint64_t now = process_start_time(pid);
    int why = now ? ESRCH : errno;
    if (now == start_time && now)
        return fd;
    close(fd);
    errno = why;
    return -1;
}

int process_reap(int pidfd)
{
    siginfo_t info;
    memset(&info, 0, sizeof info);
    if (waitid((idtype_t)P_PIDFD, (id_t)pidfd, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0)
        return -1;
    return info.si_code == CLD_EXITED ? 0 : info.si_status;
}

bool process_signal(int pidfd, int signal)
{
    return pidfd_send_signal(pidfd, signal, NULL, 0) == 0;
}
