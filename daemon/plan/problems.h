/* Everything that is wrong with an input, gathered instead of stopping at the first. */
#ifndef PLAN_PROBLEMS_H
#define PLAN_PROBLEMS_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/base/err.h"

/* Nobody reads more; a hostile input must not make us keep more. */
#define PROBLEMS_MAX 256

struct problem {
    char *path;    /* JSON pointer of the field, e.g. "/objective/block_size" */
    char *message; /* what is wrong and what would be right */
};

struct problems {
    struct problem *items;
    size_t count, capacity;
    size_t lost;    /* beyond PROBLEMS_MAX; such an input is wrong all the same */
    bool no_memory; /* was short: nothing is known to be wrong, or not what */
};

void problems_add(struct problems *p, const char *path, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* An error that says what is wrong there; takes it. */
void problems_add_err(struct problems *p, const char *path, struct err *err);
/* 0: nothing is wrong, and nothing is not known. */
size_t problems_count(const struct problems *p);
void problems_free(struct problems *p);

#endif
