#include "tests/support/netns.h"

#include <errno.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

static struct err *bring_up(const char *interface)
{
    struct ifreq request = {0};
    snprintf(request.ifr_name, sizeof request.ifr_name, "%s", interface);
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return err_errno(errno, "cannot make a socket");
    struct err *e = NULL;
    int failed = ioctl(fd, SIOCGIFFLAGS, &request);
    request.ifr_flags |= IFF_UP;
    if (failed < 0 || ioctl(fd, SIOCSIFFLAGS, &request) < 0)
        e = err_errno(errno, "cannot bring interface %s up", interface);
    close(fd);
    return e;
}

struct err *netns_enter(void)
{
    if (unshare(CLONE_NEWNET) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
        return err_errno(errno, "cannot make a network namespace");
    return bring_up("lo");
}

struct err *netns_received_bytes(const char *interface, int64_t *out)
{
    FILE *f = fopen("/proc/self/net/dev", "re");
    if (!f)
        return err_errno(errno, "cannot open /proc/self/net/dev");
    char line[512], name[64];
    long long bytes;
    struct err *e = err_new(ERR_NOT_FOUND, "there is no interface %s", interface);
    while (e && fgets(line, sizeof line, f)) {
        if (sscanf(line, " %63[^: ]: %lld", name, &bytes) == 2 && strcmp(name, interface) == 0) {
            err_free(e);
            e = NULL;
            *out = bytes;
        }
    }
    fclose(f);
    return e;
}
