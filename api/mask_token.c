/* The mask token of a job that does not name one, from the tokenizer in its model's directory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/doc.h"
#include "api/inputs.h"
#include "daemon/base/file.h"
#include "daemon/plan/mask_token.h"

#define TOKENIZER_BYTES ((size_t)64 << 20)
#define CONFIG_BYTES ((size_t)4 << 20)

static struct err *read_one(const struct file_roots *roots, const char *directory, const char *name,
                            size_t max_bytes, struct mask_token_file *out)
{
    char *path, *text = NULL;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        return err_no_memory();
    struct err *err = file_expect_within(path, roots);
    if (!err)
        err = file_read(path, max_bytes, &text, &out->bytes);
    if (err && err_kind(err) == ERR_NOT_FOUND) {
        err_free(err);
        err = NULL;
    }
    out->text = text;
    free(path);
    return err;
}

static struct err *choose(const struct api_control *control, const char *directory, int64_t vocab,
                          struct mask_token *out)
{
    const struct file_roots roots = {control->roots, control->root_count};
    struct mask_token_files files = {0};
    struct err *err =
        read_one(&roots, directory, "tokenizer.json", TOKENIZER_BYTES, &files.tokenizer);
    if (!err && !files.tokenizer.text)
        err =
            err_new(ERR_INVALID,
                    "is missing, and %s has no tokenizer.json that could say which one", directory);
    if (!err)
        err = read_one(&roots, directory, "tokenizer_config.json", CONFIG_BYTES,
                       &files.tokenizer_config);
    if (!err)
        err = read_one(&roots, directory, "special_tokens_map.json", CONFIG_BYTES,
                       &files.special_tokens_map);
    if (!err) {
        err = mask_token_choose(&files, vocab, out);
        if (err)
            err = err_wrap(err, "%s", directory);
    }
    free((char *)files.tokenizer.text);
    free((char *)files.tokenizer_config.text);
    free((char *)files.special_tokens_map.text);
    return err;
}

/* Whether the job needs a mask token that the model's tokenizer has to say. */
static bool is_wanted(const cJSON *spec)
{
    const cJSON *objective = cJSON_GetObjectItemCaseSensitive(spec, "objective");
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(spec, "data");
    const char *type = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(objective, "type"));
    const char *tokenizer =
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(data, "tokenizer"));
    return (!objective || cJSON_IsObject(objective)) &&
           !cJSON_GetObjectItemCaseSensitive(objective, "mask_token_id") &&
           !(type && strcmp(type, "autoregressive") == 0) && tokenizer &&
           strcmp(tokenizer, "bytes") != 0;
}

void inputs_mask_token(const struct api_control *control, cJSON *spec, const char *directory,
                       struct problems *problems)
{
    cJSON *model = cJSON_GetObjectItemCaseSensitive(spec, "model");
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(model, "config");
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(config, "vocab_size");
    const cJSON *grown = cJSON_GetObjectItemCaseSensitive(model, "vocab_size");
    const cJSON *vocab = grown ? grown : own;
    struct mask_token token;
    if (!is_wanted(spec) || !cJSON_IsNumber(vocab) || !(vocab->valuedouble >= 1) ||
        vocab->valuedouble > INT32_MAX)
        return; /* spec_parse says what is wrong */
    struct err *err = choose(control, directory, (int64_t)vocab->valuedouble, &token);
    if (err) {
        problems_add_err(problems, "/objective/mask_token_id", err);
        return;
    }
    cJSON *objective = cJSON_GetObjectItemCaseSensitive(spec, "objective");
    if (!objective)
        objective = doc_item(spec, "objective", cJSON_CreateObject());
    doc_number(objective, "mask_token_id", token.id);
    if (!grown && token.vocab > (int64_t)vocab->valuedouble)
        doc_number(model, "vocab_size", (double)token.vocab);
}
