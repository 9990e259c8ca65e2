#include "api/again.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "store/idempotency.h"

#define KEY_BYTES 255
#define KEY_LIFE_S (24 * 3600.0)

static bool good_key(const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < n; i++)
        if (key[i] < 0x21 || key[i] > 0x7e)
            return false;
    return n >= 1 && n <= KEY_BYTES;
}

bool again_begin(struct request *r)
{
    const char *key = request_get_header(r, "Idempotency-Key");
    if (!key)
        return true;
    if (!r->route->once) {
        request_reply_problem(r, 400, "invalid-parameter", NULL,
                              "%s %s takes no Idempotency-Key: its answer is not kept.", r->method,
                              r->route->pattern);
        return false;
    }
    if (!good_key(key)) {
        request_reply_problem(r, 400, "invalid-parameter", NULL,
                              "Idempotency-Key must have 1 to %d printable ASCII characters.",
                              KEY_BYTES);
        return false;
    }
    crypto_generichash(r->body_hash, sizeof r->body_hash,
                       (const unsigned char *)(r->body ? r->body : ""), r->body_bytes, NULL, 0);
    if (!(r->key = strdup(key))) {
        request_reply_err(r, err_no_memory());
        return false;
    }
    return true;
}

static struct store_idempotency question(const struct request *r, char *endpoint, size_t size)
{
    const char *pattern = r->route->pattern, *id = strstr(pattern, "{id}");
    if (id)
        snprintf(endpoint, size, "%s %.*s%lld%s", r->method, (int)(id - pattern), pattern,
                 (long long)r->id, id + 4);
    else
        snprintf(endpoint, size, "%s %s", r->method, pattern);
    struct store_idempotency q = {.key = r->key, .principal = r->principal, .endpoint = endpoint};
    memcpy(q.request_hash, r->body_hash, sizeof q.request_hash);
    return q;
}

struct err *again_answer(struct store_tx *tx, struct request *r, bool *found)
{
    char endpoint[128];
    *found = false;
    if (!r->key)
        return NULL;
    struct store_idempotency q = question(r, endpoint, sizeof endpoint), answer;
    struct err *err = store_idempotency_get(tx, &q, store_now(), found, &answer);
    if (err && err_kind(err) == ERR_INVALID) {
        request_reply_problem(r, 422, "idempotency-key-reused", NULL, "%s.", err_message(err));
        err_free(err);
        *found = true;
        return NULL;
    }
    TRY(err);
    if (*found) {
        request_reply_text(r, (int)answer.status, "application/json", strdup(answer.body));
        if (answer.location)
            request_header(r, "Location", "%s", answer.location);
    }
    return NULL;
}

struct err *again_look(struct store_tx *tx, struct request *r)
{
    bool found;
    return again_answer(tx, r, &found);
}

static const char *location(const struct request *r)
{
    for (int i = 0; i < REQUEST_HEADERS; i++)
        if (r->headers[i].value && strcmp(r->headers[i].name, "Location") == 0)
            return r->headers[i].value;
    return NULL;
}

struct err *again_keep(struct store_tx *tx, struct request *r)
{
    char endpoint[128];
    double now_s = store_now();
    if (!r->key || r->status >= 300 || !r->reply)
        return NULL;
    TRY(store_idempotency_expire(tx, now_s));
    struct store_idempotency answer = question(r, endpoint, sizeof endpoint);
    answer.status = r->status;
    answer.body = r->reply;
    answer.location = location(r);
    answer.created_s = now_s;
    answer.expires_s = now_s + KEY_LIFE_S;
    return store_idempotency_put(tx, &answer);
}
