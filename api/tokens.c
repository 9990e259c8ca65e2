/* Tokens: list, make, revoke, and say whose one is. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "api/auth.h"
#include "api/doc.h"
#include "api/routes.h"
#include "daemon/base/utf8.h"
#include "daemon/plan/problems.h"

#define LIFE_MOST_S (100 * 365.25 * 86400)

static cJSON *present(const struct store_token *t)
{
    cJSON *json = cJSON_CreateObject();
    doc_integer(json, "id", t->id);
    doc_text(json, "name", t->name);
    doc_text(json, "role", store_role_name(t->role));
    doc_time(json, "created_at", t->created_s);
    doc_time(json, "expires_at", t->expires_s);
    doc_time(json, "revoked_at", t->revoked_s);
    return json;
}

static struct err *read_tokens(struct store_tx *tx, struct request *r)
{
    struct store_tokens tokens;
    TRY(store_tokens_list(tx, &tokens));
    cJSON *json = cJSON_CreateObject();
    cJSON *items = doc_item(json, "tokens", cJSON_CreateArray());
    for (size_t i = 0; i < tokens.count; i++)
        doc_push(items, present(&tokens.items[i]));
    request_reply_json(r, 200, json);
    return NULL;
}

void route_tokens(struct request *r)
{
    if (request_query(r, NULL, 0))
        request_read(r, read_tokens);
}

void route_me(struct request *r)
{
    if (!request_query(r, NULL, 0))
        return;
    cJSON *json = cJSON_CreateObject();
    doc_text(json, "name", r->has_token ? r->principal : NULL);
    doc_text(json, "role", store_role_name(r->role));
    request_reply_json(r, 200, json);
}

/* ---- POST /v1/tokens ---- */

struct creation {
    cJSON *json;
    struct store_token token;
    double life_s; /* 0: it does not expire */
};

static void free_creation(void *state)
{
    struct creation *c = state;
    cJSON_Delete(c->json);
    free(c);
}

static bool good_name(const char *name)
{
    size_t n = strlen(name);
    if (n < 1 || n > AUTH_NAME_BYTES || utf8_check(name, n) < n)
        return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return false;
    return true;
}

static void check(struct creation *c, struct problems *problems)
{
    bool has_name = false, has_role = false;
    const cJSON *item;
    cJSON_ArrayForEach(item, c->json)
    {
        double life_s = item->valuedouble;
        if (strcmp(item->string, "name") == 0) {
            has_name = true;
            c->token.name = cJSON_IsString(item) ? item->valuestring : "";
            if (!good_name(c->token.name))
                problems_add(problems, "/name", "must be a text of 1 to %d bytes", AUTH_NAME_BYTES);
        } else if (strcmp(item->string, "role") == 0) {
            has_role = true;
            if (!cJSON_IsString(item) || !store_role_parse(item->valuestring, &c->token.role))
                problems_add(problems, "/role",
                             "must be \"read\", \"submit\", \"admin\" or \"agent\"");
        } else if (strcmp(item->string, "expires_in_s") == 0) {
            c->life_s = life_s;
            if (!cJSON_IsNumber(item) || !(life_s > 0 && life_s <= LIFE_MOST_S))
                problems_add(problems, "/expires_in_s",
                             "must be a number of seconds above 0, at most %.0f", LIFE_MOST_S);
        } else {
            char pointer[80];
            snprintf(pointer, sizeof pointer, "/%.70s", item->string);
            problems_add(problems, pointer, "is no field; there are name, role, expires_in_s");
        }
    }
    if (!has_name)
        problems_add(problems, "/name", "is missing");
    if (!has_role)
        problems_add(problems, "/role", "is missing");
}

static struct err *write_token(struct store_tx *tx, struct request *r)
{
    struct creation *c = r->state;
    char text[AUTH_TOKEN_BYTES];
    double now_s = store_now();
    request_clear_reply(r);
    auth_new_token(text, c->token.hash);
    c->token.created_s = now_s;
    c->token.expires_s = c->life_s > 0 ? now_s + c->life_s : 0;
    TRY(store_token_insert(tx, &c->token, now_s, &c->token.id));
    cJSON *json = present(&c->token);
    doc_text(json, "token", text);
    request_reply_json(r, 201, json);
    return NULL;
}

void route_token_create(struct request *r)
{
    struct creation *c = calloc(1, sizeof *c);
    struct problems problems = {0};
    if (!c) {
        request_reply_err(r, err_no_memory());
        return;
    }
    r->state = c;
    r->free_state = free_creation;
    if (!request_query(r, NULL, 0) || !request_json(r, &c->json))
        return;
    check(c, &problems);
    if (problems_count(&problems))
        request_reply_problems(r, 422, "invalid-token-request", "The token cannot be made",
                               &problems);
    else
        request_write(r, write_token);
    problems_free(&problems);
}

/* ---- DELETE /v1/tokens/{id} ---- */

static struct err *write_revoked(struct store_tx *tx, struct request *r)
{
    request_clear_reply(r);
    TRY(store_token_revoke(tx, r->id, store_now()));
    request_reply_nothing(r);
    return NULL;
}

void route_token_revoke(struct request *r)
{
    if (request_query(r, NULL, 0))
        request_write(r, write_revoked);
}

/* ---- dllmd --create-admin-token ---- */

struct first {
    char name[32], text[AUTH_TOKEN_BYTES];
};

static struct err *write_first(struct store_tx *tx, void *arg)
{
    struct first *first = arg;
    struct store_token token = {.name = first->name, .role = STORE_ROLE_ADMIN};
    auth_new_token(first->text, token.hash);
    for (int i = 1;; i++) {
        if (i == 1)
            snprintf(first->name, sizeof first->name, "admin");
        else
            snprintf(first->name, sizeof first->name, "admin-%d", i);
        struct err *err = store_token_insert(tx, &token, store_now(), &token.id);
        if (!err || err_kind(err) != ERR_CONFLICT)
            return err;
        err_free(err);
    }
}

struct err *api_create_admin_token(struct store *store, char token[API_TOKEN_BYTES],
                                   char name[API_TOKEN_BYTES])
{
    struct first first;
    _Static_assert(API_TOKEN_BYTES >= AUTH_TOKEN_BYTES, "a token fits");
    TRY(store_write_wait(store, write_first, &first));
    memcpy(token, first.text, sizeof first.text);
    memcpy(name, first.name, sizeof first.name);
    return NULL;
}
