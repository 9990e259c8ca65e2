/* Secrets of workers: made here, told once, remembered as a hash under the daemon's own key. */
#ifndef CONTROL_SECRET_H
#define CONTROL_SECRET_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "store/attempts.h"

#define SECRET_KEY_BYTES 32
#define SECRET_TEXT_BYTES 65 /* 64 hex digits and the NUL */

/* Reads the key at `path`, or makes one (mode 0600) where there is none. */
struct err *secret_key_load(const char *path, uint8_t key[SECRET_KEY_BYTES]);
void secret_make(const uint8_t key[SECRET_KEY_BYTES], char text[SECRET_TEXT_BYTES],
                 uint8_t hash[STORE_SECRET_HASH_BYTES]);
/* Whether `text` is the secret of that hash. In constant time. */
bool secret_matches(const uint8_t key[SECRET_KEY_BYTES], const char *text,
                    const uint8_t hash[STORE_SECRET_HASH_BYTES]);

#endif
