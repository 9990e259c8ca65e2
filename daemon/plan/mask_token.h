/* Which token stands for a masked one, where the job does not say: a question to the tokenizer's
 * files and the rows of the embedding. Pure. */
#ifndef PLAN_MASK_TOKEN_H
#define PLAN_MASK_TOKEN_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

/* Files of a model directory; text NULL: there is none. */
struct mask_token_file {
    const char *text;
    size_t bytes;
};
struct mask_token_files {
    struct mask_token_file tokenizer;          /* tokenizer.json; needed */
    struct mask_token_file tokenizer_config;   /* tokenizer_config.json */
    struct mask_token_file special_tokens_map; /* special_tokens_map.json */
};

enum mask_token_kind {
    MASK_TOKEN_OWN,      /* the tokenizer has one */
    MASK_TOKEN_UNUSED,   /* a row that no token has */
    MASK_TOKEN_RESERVED, /* a token that is kept for such purposes */
    MASK_TOKEN_ADDED,    /* a row more */
};

struct mask_token {
    enum mask_token_kind kind;
    int32_t id;
    int64_t vocab; /* rows that the model needs: as many as it has, or more */
};

/* Rows are added in multiples of this. */
#define MASK_TOKEN_ROWS 64

/* vocab: rows that the model has. ERR_INVALID: a file is not what it should be. */
struct err *mask_token_choose(const struct mask_token_files *files, int64_t vocab,
                              struct mask_token *out);

#endif
