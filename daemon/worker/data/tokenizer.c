#include "daemon/worker/data/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/plan/spec.h"

enum { BYTES = 256, END_OF_DOCUMENT = BYTES, MASK, PAD, VOCAB };
_Static_assert(MASK == SPEC_BYTES_MASK && VOCAB <= SPEC_BYTES_VOCAB, "the spec knows these ids");

struct err *tokens_reserve(struct tokens *t, size_t more)
{
    if (t->capacity - t->count >= more)
        return NULL;
    size_t capacity = t->capacity + t->capacity / 2 + more;
    uint32_t *ids = realloc(t->ids, capacity * sizeof *ids);
    if (!ids)
        return err_no_memory();
    t->ids = ids;
    t->capacity = capacity;
    return NULL;
}

void tokens_free(struct tokens *t)
{
    free(t->ids);
    *t = (struct tokens){0};
}

static struct err *encode_bytes(const struct tokenizer *t, const char *text, size_t bytes,
                                struct tokens *out)
{
    (void)t;
    TRY(tokens_reserve(out, bytes));
    uint32_t *to = out->ids + out->count;
    for (size_t i = 0; i < bytes; i++)
        to[i] = (unsigned char)text[i];
    out->count += bytes;
    return NULL;
}

static struct err *decode_bytes(const struct tokenizer *t, const uint32_t *ids, size_t n,
                                char **text, size_t *bytes)
{
    char *out = malloc(n + 1);
    size_t used = 0;
    if (!out)
        return err_no_memory();
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= t->vocab) {
            free(out);
            return err_new(ERR_INVALID, "token %u at place %zu is not below the vocabulary's %u",
                           ids[i], i, t->vocab);
        }
        if (ids[i] < BYTES)
            out[used++] = (char)ids[i];
    }
    out[used] = 0;
    *text = out;
    *bytes = used;
    return NULL;
}

static const struct tokenizer bytes_tokenizer = {
    .name = "bytes",
    .identity = "bytes 1",
    .vocab = VOCAB,
    .end_of_document = END_OF_DOCUMENT,
    .mask = MASK,
    .pad = PAD,
    .encode = encode_bytes,
    .decode = decode_bytes,
};

struct err *tokenizer_find(const char *name, const struct tokenizer **out)
{
    if (strcmp(name, bytes_tokenizer.name) != 0)
        return err_new(ERR_INVALID, "tokenizer %.64s is not known: it must be \"bytes\"", name);
    *out = &bytes_tokenizer;
    return NULL;
}
