/* Which handler serves a method and a path. A pattern's part "{id}" matches a number from 1. */
#ifndef API_ROUTER_H
#define API_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct request;

struct route {
    const char *method;
    const char *pattern;
    void (*handler)(struct request *r);
};

struct router_match {
    const struct route *route; /* NULL: none */
    int64_t id;                /* of "{id}"; 0: the pattern has none */
    bool path_known;           /* some route has this path, with another method */
    char allow[64];            /* the methods it does take, for a 405 */
};

/* HEAD is served by the route of GET. */
void router_find(const struct route *routes, size_t count, const char *method, const char *path,
                 struct router_match *out);

#endif
