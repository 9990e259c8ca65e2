#include "daemon/base/utf8.h"

#include <stdint.h>
#include <string.h>

/* Bytes of the well-formed sequence at p, of which n are there; 0 if there is none. */
static size_t sequence(const unsigned char *p, size_t n)
{
    unsigned char c = p[0];
    size_t length = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    if (length > n)
        return 0;
    for (size_t i = 1; i < length; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((c == 0xe0 && p[1] < 0xa0) || (c == 0xed && p[1] > 0x9f) || (c == 0xf0 && p[1] < 0x90) ||
        (c == 0xf4 && p[1] > 0x8f))
        return 0; /* overlong, surrogate, too large */
    return length;
}

size_t utf8_check(const char *text, size_t length)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t i = 0;
    while (i < length) {
        uint64_t eight;
        if (length - i >= sizeof eight) {
            memcpy(&eight, p + i, sizeof eight);
            if (!(eight & 0x8080808080808080u)) {
                i += sizeof eight;
                continue;
            }
        }
        size_t n = sequence(p + i, length - i);
        if (n == 0)
            return i;
        i += n;
    }
    return length;
}
