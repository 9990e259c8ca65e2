#include "store/tokens.h"

#include "store/sql.h"

static const char *const role_names[] = {
    [STORE_ROLE_READ] = "read",
    [STORE_ROLE_SUBMIT] = "submit",
    [STORE_ROLE_ADMIN] = "admin",
    [STORE_ROLE_AGENT] = "agent",
};
#define ROLES 4

const char *store_role_name(enum store_role role)
{
    return role_names[role];
}

bool store_role_parse(const char *name, enum store_role *role)
{
    int index;
    bool found = store_name_parse(name, role_names, ROLES, &index);
    if (found)
        *role = index;
    return found;
}

#define SELECT "SELECT id, name, role, hash, created_s, expires_s, revoked_s FROM tokens "

static void read_token(struct store_rows *rows, struct store_token *token)
{
    *token = (struct store_token){
        .id = store_int(rows, 0),
        .name = store_text(rows, 1),
        .role = store_name(rows, 2, role_names, ROLES, 0),
        .created_s = store_real(rows, 4),
        .expires_s = store_real(rows, 5),
        .revoked_s = store_real(rows, 6),
    };
    store_bytes(rows, 3, token->hash, sizeof token->hash);
}

static struct err *read_one(struct store_rows *rows, struct store_token *token, bool *found)
{
    *found = store_next(rows);
    if (*found)
        read_token(rows, token);
    return store_finish(rows);
}

struct err *store_token_insert(struct store_tx *tx, const struct store_token *token, double now_s,
                               int64_t *id)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "find a token's name",
                    "SELECT id FROM tokens WHERE name = ? AND revoked_s IS NULL",
                    V_TEXT(token->name)));
    bool taken = store_next(&rows);
    TRY(store_finish(&rows));
    if (taken)
        return err_new(ERR_CONFLICT, "there is a token named \"%s\" already; revoke it first",
                       token->name);
    TRY(store_exec(tx, "write a token",
                   "INSERT INTO tokens (name, role, hash, created_s, expires_s)"
                   " VALUES (?, ?, ?, ?, ?)",
                   V_TEXT(token->name), V_TEXT(role_names[token->role]),
                   V_BLOB(token->hash, sizeof token->hash), V_REAL(now_s),
                   V_TIME(token->expires_s)));
    *id = sqlite3_last_insert_rowid(tx->db);
    return NULL;
}

struct err *store_token_find(struct store_tx *tx, const uint8_t hash[STORE_TOKEN_HASH_BYTES],
                             double now_s, struct store_token *token)
{
    struct store_rows rows;
    bool found;
    TRY(store_query(tx, &rows, "find a token",
                    SELECT "WHERE hash = ? AND revoked_s IS NULL"
                           " AND (expires_s IS NULL OR expires_s > ?)",
                    V_BLOB(hash, STORE_TOKEN_HASH_BYTES), V_REAL(now_s)));
    TRY(read_one(&rows, token, &found));
    return found ? NULL : err_new(ERR_NOT_FOUND, "no valid token is that");
}

static struct err *no_token(int64_t id)
{
    return err_new(ERR_NOT_FOUND, "there is no token %lld", (long long)id);
}

struct err *store_token_get(struct store_tx *tx, int64_t id, struct store_token *token)
{
    struct store_rows rows;
    bool found;
    TRY(store_query(tx, &rows, "read a token", SELECT "WHERE id = ?", V_INT(id)));
    TRY(read_one(&rows, token, &found));
    return found ? NULL : no_token(id);
}

struct err *store_tokens_list(struct store_tx *tx, struct store_tokens *tokens)
{
    *tokens = (struct store_tokens){0};
    struct store_rows rows;
    TRY(store_query(tx, &rows, "list tokens", SELECT "ORDER BY id"));
    while (store_next(&rows)) {
        struct store_token *token = STORE_PUSH(&rows, tokens);
        if (token)
            read_token(&rows, token);
    }
    return store_finish(&rows);
}

struct err *store_token_revoke(struct store_tx *tx, int64_t id, double now_s)
{
    int64_t changed;
    TRY(store_change(tx, "revoke a token", &changed,
                     "UPDATE tokens SET revoked_s = coalesce(revoked_s, ?) WHERE id = ?",
                     V_REAL(now_s), V_INT(id)));
    return changed ? NULL : no_token(id);
}
