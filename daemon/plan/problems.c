#include "daemon/plan/problems.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct problem *make_room(struct problems *p)
{
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
    if (p->count == PROBLEMS_MAX) {
        p->lost++;
        return;
    }
    va_list args;
    va_start(args, format);
    char *message, *copy = strdup(path);
    if (vasprintf(&message, format, args) < 0)
        message = NULL;
    va_end(args);
    struct problem *room = copy && message ? make_room(p) : NULL;
    if (!room) {
        free(copy);
        free(message);
        p->no_memory = true;
        return;
    }
    *room = (struct problem){.path = copy, .message = message};
    p->count++;
}

void problems_add_err(struct problems *p, const char *path, struct err *err)
{
    if (err_kind(err) == ERR_NO_MEMORY)
        p->no_memory = true;
    else
        problems_add(p, path, "%s", err_message(err));
    err_free(err);
}

size_t problems_count(const struct problems *p)
{
    return p->count + p->lost + p->no_memory;
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
