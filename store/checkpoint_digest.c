#include "store/checkpoint_digest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>

#define CHUNK_BYTES ((size_t)1 << 20)

static void to_hex(XXH128_hash_t hash, char *hex)
{
    snprintf(hex, DIGEST_CHARS + 1, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.high64,
             (uint64_t)hash.low64);
}

void digest_bytes(const void *bytes, size_t length, char hex[static DIGEST_CHARS + 1])
{
    to_hex(XXH3_128bits(bytes, length), hex);
}

static struct err *sum_open(int fd, const char *path, XXH3_state_t *sum, char *chunk,
                            int64_t *length)
{
    XXH3_128bits_reset(sum);
    for (*length = 0;;) {
        ssize_t n = read(fd, chunk, CHUNK_BYTES);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return err_errno(errno, "%s", path);
        if (n == 0)
            return NULL;
        XXH3_128bits_update(sum, chunk, (size_t)n);
        *length += n;
    }
}

struct err *digest_file(const char *path, int64_t *length, char hex[static DIGEST_CHARS + 1])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return errno == ENOENT ? err_new(ERR_NOT_FOUND, "%s does not exist", path)
                               : err_errno(errno, "%s", path);
    char *chunk = malloc(CHUNK_BYTES);
    XXH3_state_t *sum = XXH3_createState();
    struct err *e = chunk && sum ? sum_open(fd, path, sum, chunk, length) : err_no_memory();
    if (!e)
        to_hex(XXH3_128bits_digest(sum), hex);
    XXH3_freeState(sum);
    free(chunk);
    close(fd);
    return e;
}

bool digest_is_valid(const char *hex)
{
    return strlen(hex) == DIGEST_CHARS && strspn(hex, "0123456789abcdef") == DIGEST_CHARS;
}
