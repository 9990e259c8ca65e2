/* The choice of a mask token from tokenizer.json; behind a NUL byte tokenizer_config.json may
 * follow. */
#include <assert.h>
#include <string.h>

#include "daemon/plan/mask_token.h"
#include "tests/fuzz/fuzz.h"

const char *const fuzz_words[] = {"\"model\":",
                                  "\"vocab\":",
                                  "\"added_tokens\":",
                                  "\"id\":",
                                  "\"content\":",
                                  "\"merges\":",
                                  "\"<|mask|>\"",
                                  "\"[MASK]\"",
                                  "\"<|reserved_special_token_0|>\"",
                                  "\"[control_8]\"",
                                  "\"mask_token\":",
                                  "\"eos_token\":",
                                  "{",
                                  "}",
                                  "[",
                                  "]",
                                  ",",
                                  ":",
                                  "null",
                                  "\\u0041",
                                  "\\ud83d\\ude00",
                                  "\\",
                                  "\"",
                                  NULL};

void fuzz_one(const uint8_t *bytes, size_t n)
{
    const uint8_t *cut = n ? memchr(bytes, 0, n) : NULL;
    struct mask_token_files files = {
        .tokenizer = {(const char *)bytes, cut ? (size_t)(cut - bytes) : n}};
    if (cut)
        files.tokenizer_config =
            (struct mask_token_file){(const char *)cut + 1, n - (size_t)(cut - bytes) - 1};
    struct mask_token token;
    struct err *e = mask_token_choose(&files, 64, &token);
    if (!e)
        assert(token.id >= 0 && token.id < token.vocab && token.vocab >= 64);
    err_free(e);
}
