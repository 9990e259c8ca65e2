#include "daemon/control/secret.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/file.h"

struct err *secret_key_load(const char *path, uint8_t key[SECRET_KEY_BYTES])
{
    char *text = NULL;
    size_t bytes;
    struct err *err = file_read(path, 4096, &text, &bytes);
    if (err && err_kind(err) == ERR_NOT_FOUND) {
        err_free(err);
        randombytes_buf(key, SECRET_KEY_BYTES);
        return file_replace(path, key, SECRET_KEY_BYTES);
    }
    if (!err && bytes != SECRET_KEY_BYTES)
        err = err_new(ERR_INVALID, "%s has %zu bytes, but a key has %d: it is damaged", path, bytes,
                      SECRET_KEY_BYTES);
    if (!err)
        memcpy(key, text, SECRET_KEY_BYTES);
    free(text);
    return err;
}

static void hash_text(const uint8_t key[SECRET_KEY_BYTES], const char *text,
                      uint8_t hash[STORE_SECRET_HASH_BYTES])
{
    crypto_generichash(hash, STORE_SECRET_HASH_BYTES, (const unsigned char *)text, strlen(text),
                       key, SECRET_KEY_BYTES);
}

void secret_make(const uint8_t key[SECRET_KEY_BYTES], char text[SECRET_TEXT_BYTES],
                 uint8_t hash[STORE_SECRET_HASH_BYTES])
{
    uint8_t random[(SECRET_TEXT_BYTES - 1) / 2];
    randombytes_buf(random, sizeof random);
    sodium_bin2hex(text, SECRET_TEXT_BYTES, random, sizeof random);
    sodium_memzero(random, sizeof random);
    hash_text(key, text, hash);
}

bool secret_matches(const uint8_t key[SECRET_KEY_BYTES], const char *text,
                    const uint8_t hash[STORE_SECRET_HASH_BYTES])
{
    uint8_t of_text[STORE_SECRET_HASH_BYTES];
    hash_text(key, text, of_text);
    return sodium_memcmp(of_text, hash, sizeof of_text) == 0;
}
