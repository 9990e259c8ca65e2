/* Answers to POSTs with an Idempotency-Key, kept so that a repetition gets the same answer.
 *
 * The write function of such a POST first calls store_idempotency_get; if there is no answer, it
 * does its work and calls store_idempotency_put in the same transaction. As there is one writer,
 * two requests with one key never both do the work. */
#ifndef STORE_IDEMPOTENCY_H
#define STORE_IDEMPOTENCY_H

#include "store/store.h"

#define STORE_REQUEST_HASH_BYTES 32

struct store_idempotency {
    const char *key;
    const char *principal; /* who asks: the token's name, "" without tokens */
    const char *endpoint;  /* method and path: "POST /v1/jobs" */
    uint8_t request_hash[STORE_REQUEST_HASH_BYTES]; /* of the body */
    int64_t status;                                 /* HTTP */
    const char *body;
    const char *location; /* header of the answer, or NULL */
    double created_s;
    double expires_s;
};

/* Reads key, principal, endpoint and request_hash of `request`; `found` tells whether `answer` was
 * filled in. ERR_INVALID when the key came before with another request. What has expired is not
 * there. */
struct err *store_idempotency_get(struct store_tx *tx, const struct store_idempotency *request,
                                  double now_s, bool *found, struct store_idempotency *answer);
struct err *store_idempotency_put(struct store_tx *tx, const struct store_idempotency *answer);
/* Deletes what has expired. */
struct err *store_idempotency_expire(struct store_tx *tx, double now_s);

#endif
