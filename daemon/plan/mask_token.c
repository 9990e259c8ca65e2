/* The choice, in this order:
 *
 * 1. the mask token that tokenizer_config.json or special_tokens_map.json name, unless it is also
 *    the beginning, the end, padding or the unknown token; else one whose name diffusion models
 * use;
 * 2. the first row behind the tokenizer's last id, where the embedding has one: Qwen's have
 * hundreds;
 * 3. the first token whose name says that it is reserved, and that the files give no role: Llama
 * 3's and Mistral's have hundreds;
 * 4. a row more.
 *
 * tokenizer.json has megabytes, of which the vocabulary's largest id and a few names matter: it is
 * walked through, not built.
 */
#include "daemon/plan/mask_token.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "daemon/base/json.h"
#include "daemon/base/json_cursor.h"

#define NAME_BYTES 256 /* of a token that may matter; longer ones are text */
#define MAX_ID ((double)(1 << 24))

static const char *const known_masks[] = {"<|mask|>",     "<|MASK|>", "|<MASK>|",
                                          "<|mdm_mask|>", "<mask>",   "[MASK]"};
#define N_KNOWN (sizeof known_masks / sizeof *known_masks)

/* Llama 3's, Mistral's of SentencePiece and of Tekken: a number stands between. */
static const struct {
    const char *before, *behind;
} reserved[] = {{"<|reserved_special_token_", "|>"}, {"[control_", "]"}, {"<SPECIAL_", ">"}};

static const char *const roles[] = {"bos_token", "eos_token", "unk_token",
                                    "pad_token", "sep_token", "cls_token"};

struct search {
    const cJSON *configs[2];     /* tokenizer_config.json, special_tokens_map.json; or NULL */
    const char *named;           /* the mask token by the configs, or NULL */
    int64_t size;                /* the largest id and 1 */
    int64_t own, known, reserve; /* the first id of each kind; -1: none */
};

/* ---- The small files ---- */

/* A token stands as its text, or as an object with its content. */
static const char *content(const cJSON *token)
{
    const cJSON *inner = cJSON_GetObjectItemCaseSensitive(token, "content");
    return cJSON_GetStringValue(inner ? inner : token);
}

static const char *token_of(const cJSON *config, const char *role)
{
    return content(cJSON_GetObjectItemCaseSensitive(config, role));
}

static bool has_role(const struct search *s, const char *name)
{
    for (size_t i = 0; i < 2; i++)
        for (size_t k = 0; k < sizeof roles / sizeof *roles; k++) {
            const char *token = token_of(s->configs[i], roles[k]);
            if (token && strcmp(token, name) == 0)
                return true;
        }
    return false;
}

static const char *named_mask(const struct search *s)
{
    for (size_t i = 0; i < 2; i++) {
        const char *name = token_of(s->configs[i], "mask_token");
        if (name && !has_role(s, name))
            return name;
    }
    return NULL;
}

/* ---- tokenizer.json ---- */

static bool is_reserved(const char *name)
{
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) {
        size_t n = strlen(reserved[i].before);
        if (strncmp(name, reserved[i].before, n) != 0)
            continue;
        size_t digits = strspn(name + n, "0123456789");
        if (digits > 0 && strcmp(name + n + digits, reserved[i].behind) == 0)
            return true;
    }
    return false;
}

static void keep_first(int64_t *first, int64_t id)
{
    if (*first < 0 || id < *first)
        *first = id;
}

static bool take_token(struct search *s, struct json_cursor *c, const char *name, double id)
{
    if (!(id >= 0) || id >= MAX_ID || id != floor(id)) {
        c->what = "an id below 2^24";
        return false;
    }
    if ((int64_t)id >= s->size)
        s->size = (int64_t)id + 1;
    if (s->named && strcmp(name, s->named) == 0)
        s->own = (int64_t)id;
    for (size_t i = 0; i < N_KNOWN; i++)
        if (strcmp(name, known_masks[i]) == 0 && !has_role(s, name))
            keep_first(&s->known, (int64_t)id);
    if (is_reserved(name) && !has_role(s, name))
        keep_first(&s->reserve, (int64_t)id);
    return true;
}

/* {"token": id, ...} */
static bool walk_vocabulary(struct search *s, struct json_cursor *c)
{
    char name[NAME_BYTES];
    size_t length;
    double id;
    if (!json_cursor_enter(c, '{'))
        return false;
    while (json_cursor_next(c, '{')) {
        if (!json_cursor_key(c, name, sizeof name, &length) || !json_cursor_number(c, &id))
            return false;
        if (!take_token(s, c, length < sizeof name ? name : "", id))
            return false;
    }
    return !c->what;
}

/* {"id": ..., "content": ..., ...} */
static bool walk_added_token(struct search *s, struct json_cursor *c)
{
    char key[NAME_BYTES], name[NAME_BYTES] = "";
    size_t length, name_length = 0;
    double id = -1;
    if (!json_cursor_enter(c, '{'))
        return false;
    while (json_cursor_next(c, '{')) {
        if (!json_cursor_key(c, key, sizeof key, &length))
            return false;
        bool good = strcmp(key, "id") == 0 ? json_cursor_number(c, &id)
                    : strcmp(key, "content") == 0
                        ? json_cursor_string(c, name, sizeof name, &name_length)
                        : json_cursor_skip(c);
        if (!good)
            return false;
    }
    return !c->what && take_token(s, c, name_length < sizeof name ? name : "", id);
}

static bool walk_added_tokens(struct search *s, struct json_cursor *c)
{
    if (json_cursor_kind(c) == 'n')
        return json_cursor_skip(c);
    if (!json_cursor_enter(c, '['))
        return false;
    while (json_cursor_next(c, '['))
        if (!walk_added_token(s, c))
            return false;
    return !c->what;
}

/* The members of the object that follows: what `member` does with one, false for a fault. */
static bool walk_object(struct search *s, struct json_cursor *c,
                        bool (*member)(struct search *, struct json_cursor *, const char *))
{
    char key[NAME_BYTES];
    size_t length;
    if (!json_cursor_enter(c, '{'))
        return false;
    while (json_cursor_next(c, '{'))
        if (!json_cursor_key(c, key, sizeof key, &length) || !member(s, c, key))
            return false;
    return !c->what;
}

static bool member_of_model(struct search *s, struct json_cursor *c, const char *key)
{
    return strcmp(key, "vocab") == 0 ? walk_vocabulary(s, c) : json_cursor_skip(c);
}

static bool member_of_tokenizer(struct search *s, struct json_cursor *c, const char *key)
{
    if (strcmp(key, "model") == 0)
        return walk_object(s, c, member_of_model);
    return strcmp(key, "added_tokens") == 0 ? walk_added_tokens(s, c) : json_cursor_skip(c);
}

static struct err *walk_tokenizer(struct search *s, const struct mask_token_file *file)
{
    struct json_cursor c = json_cursor(file->text, file->bytes);
    if (!walk_object(s, &c, member_of_tokenizer))
        return err_new(ERR_INVALID, "tokenizer.json: %s should stand at byte %zu", c.what,
                       json_cursor_offset(&c));
    if (s->size == 0)
        return err_new(ERR_INVALID, "tokenizer.json has no tokens at model/vocab");
    if (s->named && s->own < 0)
        return err_new(ERR_INVALID,
                       "tokenizer.json does not have the mask token %.100s that its configuration "
                       "names",
                       s->named);
    return NULL;
}

/* ---- The choice ---- */

static int64_t rounded_up(int64_t rows)
{
    return (rows + MASK_TOKEN_ROWS - 1) / MASK_TOKEN_ROWS * MASK_TOKEN_ROWS;
}

static struct mask_token choose(const struct search *s, int64_t vocab)
{
    struct mask_token token = {.kind = MASK_TOKEN_ADDED, .id = (int32_t)s->size};
    int64_t own = s->own >= 0 ? s->own : s->known;
    if (own >= 0)
        token = (struct mask_token){.kind = MASK_TOKEN_OWN, .id = (int32_t)own};
    else if (s->size < vocab)
        token.kind = MASK_TOKEN_UNUSED;
    else if (s->reserve >= 0)
        token = (struct mask_token){.kind = MASK_TOKEN_RESERVED, .id = (int32_t)s->reserve};
    token.vocab = token.id < vocab ? vocab : rounded_up(token.id + 1);
    return token;
}

static struct err *parse(const struct mask_token_file *file, const char *name, cJSON **out)
{
    *out = NULL;
    struct err *e = file->text ? json_parse(file->text, file->bytes, out) : NULL;
    return e ? err_wrap(e, "%s", name) : NULL;
}

struct err *mask_token_choose(const struct mask_token_files *files, int64_t vocab,
                              struct mask_token *out)
{
    cJSON *config = NULL, *map = NULL;
    struct err *e = parse(&files->tokenizer_config, "tokenizer_config.json", &config);
    if (!e)
        e = parse(&files->special_tokens_map, "special_tokens_map.json", &map);
    if (!e) {
        struct search s = {.configs = {config, map}, .own = -1, .known = -1, .reserve = -1};
        s.named = named_mask(&s);
        e = walk_tokenizer(&s, &files->tokenizer);
        if (!e)
            *out = choose(&s, vocab);
    }
    cJSON_Delete(config);
    cJSON_Delete(map);
    return e;
}
