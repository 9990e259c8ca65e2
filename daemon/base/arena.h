/* One block of memory cut into pieces that live and die together.
 *
 * The same code runs twice: first over an arena without memory, which only measures, then over a
 * block of the measured size. So the memory that a component uses is known before it is taken.
 */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

#define ARENA_ALIGNMENT 256

struct arena {
    char *base; /* NULL: measure only */
    size_t used_bytes;
};

/* `bytes` at an ARENA_ALIGNMENT boundary; NULL while measuring. */
static inline void *arena_take(struct arena *a, size_t bytes)
{
    size_t begin = (a->used_bytes + ARENA_ALIGNMENT - 1) / ARENA_ALIGNMENT * ARENA_ALIGNMENT;
    a->used_bytes = begin + bytes;
    return a->base ? a->base + begin : NULL;
}

#endif
