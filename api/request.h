/* One HTTP request, from its headers to its answer.
 *
 * A route's handler runs on the loop thread when the body is complete. It either answers at once
 * (request_reply_*), or hands the request to the pool or the writer (request_work, request_read,
 * request_write): the connection is suspended, the given function fills in the answer with the
 * same request_reply_* calls in its own thread (or returns an error, which becomes a problem
 * document), and the connection goes on. A handler of several steps sets `next`, which then runs
 * on the loop thread after a step without error and without an answer.
 */
#ifndef API_REQUEST_H
#define API_REQUEST_H

#include <cjson/cJSON.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/async.h"
#include "api/control.h"
#include "api/router.h"
#include "daemon/plan/problems.h"
#include "store/idempotency.h"
#include "store/tokens.h"

#define REQUEST_BODY_BYTES ((size_t)1 << 20)
#define REQUEST_HEADERS 4
#define REQUEST_ETAG_BYTES 40

struct api;

struct request {
    struct api *api;
    struct async *async;
    const struct api_control *control;
    struct MHD_Connection *connection;
    const struct route *route;
    const char *method; /* of the route, so HEAD is GET */
    int64_t id;         /* {id} of the path */
    char *body;
    size_t body_bytes, body_capacity;
    bool has_token;
    uint8_t token_hash[STORE_TOKEN_HASH_BYTES];
    char principal[128];  /* the token's name; "": none was sent */
    enum store_role role; /* the token's; admin where none was sent and none is needed */
    char *if_match;       /* of a route that takes it; NULL: none was sent, or "*" */
    char *key;            /* Idempotency-Key, or NULL */
    uint8_t body_hash[STORE_REQUEST_HASH_BYTES]; /* where there is a key */

    const char *uri_end; /* of what was asked for, as it came: its NUL */
    int uri_status;      /* with which it is refused; 0: it is not */
    bool begun;          /* its headers are there */

    /* the answer */
    int status;     /* 0: none yet */
    bool no_memory; /* for the answer that was meant */
    char *reply;
    size_t reply_bytes;
    const char *reply_type;
    struct {
        const char *name;
        char *value;
    } headers[REQUEST_HEADERS];
    struct MHD_Response *response; /* made by the handler itself, instead of `reply` */

    /* the handler's own */
    void *state;
    void (*free_state)(void *state);
    void (*next)(struct request *r);

    struct async_item item;
    struct err *(*step)(struct request *r);
    struct err *(*step_tx)(struct store_tx *tx, struct request *r);
    struct err *(*once)(struct store_tx *tx, struct request *r);
    bool suspended; /* its connection is */
    bool stepping;  /* a step is in another thread */
    bool called;    /* the handler was */
    bool body_too_big;
    size_t body_seen;
};

/* Steps away from the loop thread, one at a time. The daemon is told of each committed write
 * (api_control.changed). */
void request_work(struct request *r, struct err *(*fn)(struct request *r));
void request_read(struct request *r, struct err *(*fn)(struct store_tx *tx, struct request *r));
void request_write(struct request *r, struct err *(*fn)(struct store_tx *tx, struct request *r));
/* As request_write, for a route that takes an Idempotency-Key: `fn` runs only if its answer is not
 * there already, and what it answers is kept with it. */
void request_write_once(struct request *r,
                        struct err *(*fn)(struct store_tx *tx, struct request *r));

/* The answer; a later one replaces it (a write function may run twice). Any thread, but one at a
 * time. */
void request_reply_json(struct request *r, int status, cJSON *json); /* takes it; NULL: 503 */
void request_reply_text(struct request *r, int status, const char *type, char *text); /* takes it */
void request_reply_nothing(struct request *r);                                        /* 204 */
/* `type`: the word of the problem's type, "invalid-spec"; errors: an array, taken, or NULL. */
void request_reply_problem(struct request *r, int status, const char *type, cJSON *errors,
                           const char *format, ...) __attribute__((format(printf, 5, 6)));
void request_reply_err(struct request *r, struct err *err); /* takes it */
/* Of the list of problems; takes nothing. */
void request_reply_problems(struct request *r, int status, const char *type, const char *what,
                            const struct problems *problems);
/* Replaces a header of that name. `name` is a constant. */
void request_header(struct request *r, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void request_clear_reply(struct request *r);

/* The ETag of an answer: a hash of its text, so it is as strong as can be. */
void request_etag(const char *text, size_t bytes, char out[REQUEST_ETAG_BYTES]);
/* Some ETag of a header's list is that one. `weak`: "W/" does not count. */
bool request_etag_listed(const char *list, const char *etag, bool weak);
/* With r->if_match: whether it names `current`, the answer of GET as it would be now (taken). If
 * not, 412 is answered. */
struct err *request_matches(struct request *r, cJSON *current, bool *out);

/* Where a parameter of the route's table goes: int64_t *, bool *, const char ** (as long as the
 * request); untouched when the parameter is not given. */
struct query {
    const char *name;
    void *out;
};
/* Reads and checks the parameters. False: an unknown, repeated, or malformed one; the answer is
 * made and names all. */
bool request_query(struct request *r, const struct query *queries, size_t count);
/* A whole number from `least` to `most`, digits and a sign alone; untouched if it is none. */
bool request_integer(const char *text, int64_t least, int64_t most, int64_t *out);
/* NULL: not there. */
const char *request_get_header(const struct request *r, const char *name);
/* The body as JSON object. False: answered (415, 413, 400 with line and column). */
bool request_json(struct request *r, cJSON **out);

/* For the server. */
void request_free(struct request *r);

#endif
