#include "daemon/base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_BYTES 256

/* Room for so many bytes and a NUL. */
static bool reserve(struct text *t, size_t bytes)
{
    size_t wanted = t->length + bytes + 1;
    if (t->no_memory || wanted <= t->capacity)
        return !t->no_memory;
    size_t capacity = t->capacity ? 2 * t->capacity : LEAST_BYTES;
    if (capacity < wanted)
        capacity = wanted;
    char *grown = realloc(t->bytes, capacity);
    t->no_memory = !grown;
    if (!grown)
        return false;
    t->bytes = grown;
    t->capacity = capacity;
    return true;
}

void text_add(struct text *t, const char *more)
{
    size_t n = strlen(more);
    if (!reserve(t, n))
        return;
    memcpy(t->bytes + t->length, more, n + 1);
    t->length += n;
}

void text_print(struct text *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0)
        t->no_memory = true;
    if (n < 0 || !reserve(t, (size_t)n))
        return;
    va_start(args, format);
    vsnprintf(t->bytes + t->length, (size_t)n + 1, format, args);
    va_end(args);
    t->length += (size_t)n;
}

char *text_take(struct text *t)
{
    text_add(t, ""); /* an empty one is a text, too */
    char *whole = t->no_memory ? NULL : t->bytes;
    if (!whole)
        free(t->bytes);
    *t = (struct text){0};
    return whole;
}
