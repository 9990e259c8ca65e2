#include "api/guard.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

bool guard_loopback(const char *address)
{
    struct in_addr v4;
    struct in6_addr v6;
    if (inet_pton(AF_INET, address, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, address, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/* The name in "name", "name:80", "[::1]", "[::1]:80". */
static bool split(const char *host, char *out, size_t size)
{
    size_t n;
    if (host[0] == '[') {
        n = strcspn(++host, "]");
        if (host[n] != ']' || (host[n + 1] && host[n + 1] != ':'))
            return false;
    } else {
        n = strcspn(host, ":");
    }
    if (n == 0 || n >= size)
        return false;
    memcpy(out, host, n);
    out[n] = '\0';
    return true;
}

bool guard_host_known(const char *host, const char *const *hosts, size_t count)
{
    char name[256];
    unsigned char address[sizeof(struct in6_addr)];
    if (!host)
        return true;
    if (!split(host, name, sizeof name))
        return false;
    if (strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, address) == 1 ||
        inet_pton(AF_INET6, name, address) == 1)
        return true;
    for (size_t i = 0; i < count; i++)
        if (strcasecmp(name, hosts[i]) == 0)
            return true;
    return false;
}

bool guard_same_origin(const char *origin, const char *scheme, const char *host)
{
    if (!origin)
        return true;
    size_t n = strlen(scheme);
    return host && strncasecmp(origin, scheme, n) == 0 && strncmp(origin + n, "://", 3) == 0 &&
           strcasecmp(origin + n + 3, host) == 0;
}
