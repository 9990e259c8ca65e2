/* Who asks, and whether they may.
 *
 * A token is "dllmd_" and 43 characters that stand for 32 random bytes. The database knows the
 * BLAKE2b hash of that text only; since a token is not guessed but drawn, no slow hash is needed,
 * and since the hash is what is searched for and compared, the time that takes tells nothing about
 * a token. A token is looked up anew for each request, so revoking it holds at once.
 *
 * Where the daemon asks for tokens (auth_required), a route that is not open answers 401 without
 * one. Where it does not, everybody is an admin; but a token that is sent counts for what it is
 * there, too, and a wrong one is refused.
 */
#ifndef API_AUTH_H
#define API_AUTH_H

#include "api/request.h"
#include "store/tokens.h"

#define AUTH_TOKEN_BYTES 50 /* with the NUL */
#define AUTH_NAME_BYTES 100 /* of a token's name at most */

/* Draws a token and its hash. */
void auth_new_token(char token[AUTH_TOKEN_BYTES], uint8_t hash[STORE_TOKEN_HASH_BYTES]);
void auth_hash(const char *token, size_t bytes, uint8_t hash[STORE_TOKEN_HASH_BYTES]);
/* A token of that role passes a route that asks for this one. */
bool auth_allows(enum store_role has, enum route_role needs);

/* When the headers are there: answers 401 where that is clear already, else notes the token. */
void auth_begin(struct request *r);
/* Before the handler: runs it at once, or when the token was looked up and is enough. */
void auth_then_handle(struct request *r);

#endif
