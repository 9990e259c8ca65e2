/* Requests that come again: the Idempotency-Key header (draft-ietf-httpapi-idempotency-key-header).
 *
 * The answer to a request that was done is kept, in the transaction that did it, for a day under
 * (who asked, method and path, key). The same request under the same key gets that answer and
 * nothing is done twice, not even when both come at once, since there is one writer. Another
 * request under the same key is refused with 422. A request that was refused leaves nothing behind
 * and may be put right under the same key.
 */
#ifndef API_AGAIN_H
#define API_AGAIN_H

#include "api/request.h"

/* Before the handler (which may change the body): reads the header. False: it is malformed, or the
 * route takes none; answered. */
bool again_begin(struct request *r);
/* Answers as before, if this came before, or refuses a reused key; *found says whether it did. */
struct err *again_answer(struct store_tx *tx, struct request *r, bool *found);
/* Likewise alone, as a step of request_read(). */
struct err *again_look(struct store_tx *tx, struct request *r);
/* Keeps the answer that stands. */
struct err *again_keep(struct store_tx *tx, struct request *r);

#endif
