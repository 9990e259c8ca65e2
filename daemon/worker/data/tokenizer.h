/* Text into tokens and back.
 *
 * A tokenizer is a table of what it can do, so that a kind joins by filling one. The kind `bytes`:
 * ids 0..255 are the bytes of UTF-8, then three special tokens.
 */
#ifndef WORKER_TOKENIZER_H
#define WORKER_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

/* A growing list of tokens; zeroed it is empty. */
struct tokens {
    uint32_t *ids;
    size_t count;
    size_t capacity;
};
/* Room for `more` tokens behind the last. */
struct err *tokens_reserve(struct tokens *t, size_t more);
void tokens_free(struct tokens *t);

struct tokenizer {
    const char *name;
    /* Changes whenever the same text would become other tokens; part of a dataset's hash. */
    const char *identity;
    uint32_t vocab;           /* all ids are below it */
    uint32_t end_of_document; /* stands behind every document */
    uint32_t mask;
    uint32_t pad; /* fills rows that belong to no document */

    /* Appends the tokens of a piece of text (UTF-8, possibly with NUL) to *out. */
    struct err *(*encode)(const struct tokenizer *t, const char *text, size_t bytes,
                          struct tokens *out);
    /* The text of n tokens as a new NUL-terminated string of *bytes bytes; special tokens become
     * nothing. ERR_INVALID for an id that is not below vocab. */
    struct err *(*decode)(const struct tokenizer *t, const uint32_t *ids, size_t n, char **text,
                          size_t *bytes);
};

/* The tokenizer of that name; it lives as long as the program. ERR_INVALID for an unknown one. */
struct err *tokenizer_find(const char *name, const struct tokenizer **out);

#endif
