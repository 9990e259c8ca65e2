/* Is it text? UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing beyond
 * U+10FFFF. */
#ifndef BASE_UTF8_H
#define BASE_UTF8_H

#include <stddef.h>

/* Offset of the first byte that does not belong to well-formed UTF-8; `length` if there is none.
 * A sequence cut off by the end counts as ill-formed from its first byte on. */
size_t utf8_check(const char *text, size_t length);

#endif
