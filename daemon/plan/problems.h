/* Everything that is wrong with an input, gathered instead of stopping at the first. */
#ifndef PLAN_PROBLEMS_H
#define PLAN_PROBLEMS_H

#include <stddef.h>

/* Nobody reads more; a hostile input must not make us keep more. */
#define PROBLEMS_MAX 256

struct problem {
    char *path;    /* JSON pointer of the field, e.g. "/objective/block_size" */
    char *message; /* what is wrong and what would be right */
};

struct problems {
    struct problem *items;
    size_t count, capacity;
    /* Problems beyond PROBLEMS_MAX or for which memory was too short; such an input is wrong all
     * the same. */
    size_t lost;
};

void problems_add(struct problems *p, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
size_t problems_count(const struct problems *p); /* kept and lost */
void problems_free(struct problems *p);

#endif
