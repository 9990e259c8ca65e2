/* Who may not even ask: pages of other sites that reach for a service on this machine through a
 * visitor's browser, by a request of their own (Origin) or by a DNS name that they let point here
 * (Host). Neither stands in the way of curl. Pure. */
#ifndef API_GUARD_H
#define API_GUARD_H

#include <stdbool.h>
#include <stddef.h>

/* `host` as the header says it, with or without a port; NULL (HTTP/1.0) is fine. An address in
 * numbers, localhost and the names of `hosts` are known: nobody else's DNS decides where they
 * point. */
bool guard_host_known(const char *host, const char *const *hosts, size_t count);

/* True without an Origin; else it must be that of the page that we served: "<scheme>://<host>". */
bool guard_same_origin(const char *origin, const char *scheme, const char *host);

/* 127.0.0.0/8 or ::1, in numbers. */
bool guard_loopback(const char *address);

#endif
