/* What a route is, and which one serves a method and a path. A pattern's part "{id}" matches a
 * number from 1.
 *
 * All that is to be known of a route stands in its row of the table (routes.c): the server asks it
 * who may come, handlers which parameters there are, openapi.c describes the whole of it.
 */
#ifndef API_ROUTER_H
#define API_ROUTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct request;

/* The least role that a route asks for: admin may do what submit may, and submit what read may.
 * Tokens of the role agent are for the other nodes of a cluster and pass ROUTE_OPEN only. */
enum route_role { ROUTE_OPEN, ROUTE_READ, ROUTE_SUBMIT, ROUTE_ADMIN };

/* A parameter of the query. */
struct parameter {
    const char *name;
    enum { QUERY_INTEGER, QUERY_BOOLEAN, QUERY_TEXT } type;
    int64_t least, most; /* of an integer; bytes of a text */
    const char *summary;
};

struct route {
    const char *method;
    const char *pattern;
    void (*handler)(struct request *r);
    enum route_role role;
    const char *summary; /* a sentence */
    int status;          /* of success */
    const char *reply;   /* schema of the JSON that answers (schemas.h); NULL: see type */
    const char *type;    /* media type of an answer that is not JSON; with `reply`: one on request;
                          * both NULL: no body */
    const char *body;    /* schema of the JSON body; NULL: none */
    bool body_optional;
    bool once;                          /* takes an Idempotency-Key */
    bool match;                         /* takes If-Match with the ETag of the resource */
    const struct parameter *parameters; /* the last one has no name; NULL: none */
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
