/* API tokens. The store knows their hash only. */
#ifndef STORE_TOKENS_H
#define STORE_TOKENS_H

#include "store/store.h"

#define STORE_TOKEN_HASH_BYTES 32

enum store_role { STORE_ROLE_READ, STORE_ROLE_SUBMIT, STORE_ROLE_ADMIN, STORE_ROLE_AGENT };

const char *store_role_name(enum store_role role);
bool store_role_parse(const char *name, enum store_role *role);

struct store_token {
    int64_t id;
    const char *name; /* unique among those not revoked */
    enum store_role role;
    uint8_t hash[STORE_TOKEN_HASH_BYTES];
    double created_s;
    double expires_s; /* 0: never */
    double revoked_s; /* 0: not revoked */
};

struct store_tokens {
    struct store_token *items;
    size_t count;
};

/* Reads name, role, hash, expires_s. ERR_CONFLICT when the name is taken. */
struct err *store_token_insert(struct store_tx *tx, const struct store_token *token, double now_s,
                               int64_t *id);
/* The token of that hash that holds at now_s; ERR_NOT_FOUND when there is none, it has expired or
 * was revoked. */
struct err *store_token_find(struct store_tx *tx, const uint8_t hash[STORE_TOKEN_HASH_BYTES],
                             double now_s, struct store_token *token);
struct err *store_token_get(struct store_tx *tx, int64_t id, struct store_token *token);
/* All, revoked ones too, the oldest first. */
struct err *store_tokens_list(struct store_tx *tx, struct store_tokens *tokens);
/* Revoking twice keeps the first time. */
struct err *store_token_revoke(struct store_tx *tx, int64_t id, double now_s);

#endif
