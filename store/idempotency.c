#include "store/idempotency.h"

#include <string.h>

#include "store/sql.h"

struct err *store_idempotency_get(struct store_tx *tx, const struct store_idempotency *request,
                                  double now_s, bool *found, struct store_idempotency *answer)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "find an answer",
                    "SELECT principal, endpoint, key, request_hash, status, body, location,"
                    " created_s, expires_s FROM idempotency"
                    " WHERE principal = ? AND endpoint = ? AND key = ? AND expires_s > ?",
                    V_TEXT(request->principal), V_TEXT(request->endpoint), V_TEXT(request->key),
                    V_REAL(now_s)));
    *found = store_next(&rows);
    if (*found) {
        *answer = (struct store_idempotency){
            .principal = store_text(&rows, 0),
            .endpoint = store_text(&rows, 1),
            .key = store_text(&rows, 2),
            .status = store_int(&rows, 4),
            .body = store_text(&rows, 5),
            .location = store_text(&rows, 6),
            .created_s = store_real(&rows, 7),
            .expires_s = store_real(&rows, 8),
        };
        store_bytes(&rows, 3, answer->request_hash, sizeof answer->request_hash);
    }
    TRY(store_finish(&rows));
    if (*found && memcmp(answer->request_hash, request->request_hash, sizeof answer->request_hash))
        return err_new(ERR_INVALID,
                       "the Idempotency-Key \"%s\" came before with another request to %s; take a "
                       "new key for a new request",
                       request->key, request->endpoint);
    return NULL;
}

struct err *store_idempotency_put(struct store_tx *tx, const struct store_idempotency *a)
{
    return store_exec(tx, "write an answer",
                      "INSERT OR REPLACE INTO idempotency (principal, endpoint, key, request_hash,"
                      " status, body, location, created_s, expires_s)"
                      " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                      V_TEXT(a->principal), V_TEXT(a->endpoint), V_TEXT(a->key),
                      V_BLOB(a->request_hash, sizeof a->request_hash), V_INT(a->status),
                      V_TEXT(a->body), V_TEXT(a->location), V_REAL(a->created_s),
                      V_REAL(a->expires_s));
}

struct err *store_idempotency_expire(struct store_tx *tx, double now_s)
{
    return store_exec(tx, "delete old answers", "DELETE FROM idempotency WHERE expires_s <= ?",
                      V_REAL(now_s));
}
