/* A text that grows. Short memory is remembered, so that only the end has to ask; a stream of
 * open_memstream() would leave out what it could not hold, and say nothing. */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct text { /* {0}: empty */
    char *bytes;
    size_t length, capacity;
    bool no_memory;
};

void text_add(struct text *t, const char *more);
void text_print(struct text *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The whole, freed by the caller, and *t is empty again. NULL: memory was short. */
char *text_take(struct text *t);

#endif
