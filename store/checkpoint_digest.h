/* XXH3-128 as checkpoints carry it: 32 lower-case hex digits, the high half first. */
#ifndef STORE_CHECKPOINT_DIGEST_H
#define STORE_CHECKPOINT_DIGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

#define DIGEST_CHARS 32

void digest_bytes(const void *bytes, size_t length, char hex[static DIGEST_CHARS + 1]);
/* Of a file as it can be read back now, and its length. */
struct err *digest_file(const char *path, int64_t *length, char hex[static DIGEST_CHARS + 1]);
bool digest_is_valid(const char *hex);

#endif
