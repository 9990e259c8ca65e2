#include "daemon/plan/problems.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct problem *make_room(struct problems *p)
{
    if (p->count == PROBLEMS_MAX)
        return NULL;
    if (p->count == p->capacity) {
        size_t capacity = p->capacity ? 2 * p->capacity : 8;
        struct problem *items = realloc(p->items, capacity * sizeof *items);
        if (!items)
            return NULL;
        p->items = items;
        p->capacity = capacity;
    }
    return &p->items[p->count];
}

void problems_add(struct problems *p, const char *path, const char *format, ...)
{
    struct problem *room = make_room(p);
    if (!room) {
        p->lost++;
        return;
    }
    va_list args;
    va_start(args, format);
    char *message;
    int n = vasprintf(&message, format, args);
    va_end(args);
    char *copy = n < 0 ? NULL : strdup(path);
    if (!copy) {
        if (n >= 0)
            free(message);
        p->lost++;
        return;
    }
    *room = (struct problem){.path = copy, .message = message};
    p->count++;
}

size_t problems_count(const struct problems *p)
{
    return p->count + p->lost;
}

void problems_free(struct problems *p)
{
    for (size_t i = 0; i < p->count; i++) {
        free(p->items[i].path);
        free(p->items[i].message);
    }
    free(p->items);
    *p = (struct problems){0};
}
