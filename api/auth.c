#include "api/auth.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/server.h"

#define PREFIX "dllmd_"
#define SECRET_BYTES 32
#define HEADER_BYTES 512

void auth_hash(const char *token, size_t bytes, uint8_t hash[STORE_TOKEN_HASH_BYTES])
{
    crypto_generichash(hash, STORE_TOKEN_HASH_BYTES, (const unsigned char *)token, bytes, NULL, 0);
}

void auth_new_token(char token[AUTH_TOKEN_BYTES], uint8_t hash[STORE_TOKEN_HASH_BYTES])
{
    unsigned char secret[SECRET_BYTES];
    size_t n = strlen(PREFIX);
    randombytes_buf(secret, sizeof secret);
    memcpy(token, PREFIX, n);
    sodium_bin2base64(token + n, AUTH_TOKEN_BYTES - n, secret, sizeof secret,
                      sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    sodium_memzero(secret, sizeof secret);
    auth_hash(token, strlen(token), hash);
}

bool auth_allows(enum store_role has, enum route_role needs)
{
    switch (needs) {
    case ROUTE_OPEN:
        return true;
    case ROUTE_READ:
        return has == STORE_ROLE_READ || has == STORE_ROLE_SUBMIT || has == STORE_ROLE_ADMIN;
    case ROUTE_SUBMIT:
        return has == STORE_ROLE_SUBMIT || has == STORE_ROLE_ADMIN;
    case ROUTE_ADMIN:
        return has == STORE_ROLE_ADMIN;
    }
    return false;
}

static const char *needs_name(enum route_role needs)
{
    return needs == ROUTE_ADMIN ? "admin" : needs == ROUTE_SUBMIT ? "submit" : "read";
}

/* RFC 6750, section 3: no error code where no token was sent. */
static void refuse(struct request *r, const char *error, const char *detail)
{
    request_reply_problem(r, 401, error ? "invalid-token" : "token-missing", NULL, "%s", detail);
    request_header(r, "WWW-Authenticate", "Bearer realm=\"dllmd\"%s%s%s", error ? ", error=\"" : "",
                   error ? error : "", error ? "\"" : "");
}

void auth_begin(struct request *r)
{
    if (r->route->role == ROUTE_OPEN)
        return;
    const char *header = request_get_header(r, "Authorization");
    if (!header) {
        if (r->api->auth_required)
            refuse(r, NULL,
                   "This needs a token: send Authorization: Bearer TOKEN. dllmd "
                   "--create-admin-token makes the first.");
        else
            r->role = STORE_ROLE_ADMIN;
        return;
    }
    size_t scheme = strcspn(header, " ");
    const char *token = header + scheme + strspn(header + scheme, " ");
    size_t n = strlen(token);
    if (scheme != 6 || strncasecmp(header, "Bearer", 6) != 0 || n == 0 || n > HEADER_BYTES) {
        refuse(r, "invalid_request", "Authorization must be: Bearer TOKEN.");
        return;
    }
    auth_hash(token, n, r->token_hash);
    r->has_token = true;
}

/* In the pool. */
static struct err *look_up(struct store_tx *tx, struct request *r)
{
    struct store_token token;
    struct err *err = store_token_find(tx, r->token_hash, store_now(), &token);
    if (err && err_kind(err) == ERR_NOT_FOUND) {
        err_free(err);
        refuse(r, "invalid_token", "This token is none, has expired, or was revoked.");
        return NULL;
    }
    TRY(err);
    if (sodium_memcmp(token.hash, r->token_hash, sizeof token.hash) != 0)
        return err_new(ERR_INTERNAL, "the database found another token");
    if (!auth_allows(token.role, r->route->role)) {
        request_reply_problem(r, 403, "role-too-small", NULL,
                              "This needs a token of the role %s; \"%s\" has the role %s.",
                              needs_name(r->route->role), token.name, store_role_name(token.role));
        return NULL;
    }
    snprintf(r->principal, sizeof r->principal, "%s", token.name);
    r->role = token.role;
    return NULL;
}

void auth_then_handle(struct request *r)
{
    if (!r->has_token) {
        r->route->handler(r);
        return;
    }
    r->next = r->route->handler;
    request_read(r, look_up);
}
