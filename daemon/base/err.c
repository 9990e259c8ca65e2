#include "daemon/base/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct err {
    enum err_kind kind;
    char message[];
};

static struct {
    enum err_kind kind;
    char message[16];
} no_memory = {ERR_NO_MEMORY, "out of memory"};

struct err *err_no_memory(void)
{
    return (struct err *)&no_memory;
}

/* "<formatted><tail>" */
__attribute__((format(printf, 3, 0), nonnull)) static struct err *
make(enum err_kind kind, const char *tail, const char *format, va_list args)
{
    va_list again;
    va_copy(again, args);
    int head = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (head < 0)
        return err_no_memory();
    size_t size = (size_t)head + strlen(tail) + 1;
    struct err *e = malloc(sizeof *e + size);
    if (!e)
        return err_no_memory();
    e->kind = kind;
    vsnprintf(e->message, size, format, args);
    strcpy(e->message + head, tail);
    return e;
}

struct err *err_new(enum err_kind kind, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    struct err *e = make(kind, "", format, args);
    va_end(args);
    return e;
}

struct err *err_errno(int errnum, const char *format, ...)
{
    char reason[160], tail[168];
    snprintf(tail, sizeof tail, ": %s", strerror_r(errnum, reason, sizeof reason));
    va_list args;
    va_start(args, format);
    struct err *e = make(errnum == ENOMEM ? ERR_NO_MEMORY : ERR_IO, tail, format, args);
    va_end(args);
    return e;
}

struct err *err_wrap(struct err *inner, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    struct err *outer = make(inner->kind, ": ", format, args);
    va_end(args);
    struct err *e = outer;
    if ((void *)outer != &no_memory) {
        e = err_new(inner->kind, "%s%s", outer->message, inner->message);
        err_free(outer);
    }
    err_free(inner);
    return e;
}

const char *err_message(const struct err *e)
{
    return e->message;
}

enum err_kind err_kind(const struct err *e)
{
    return e->kind;
}

const char *err_kind_name(enum err_kind kind)
{
    static const char *const names[] = {
        [ERR_INVALID] = "invalid", [ERR_NOT_FOUND] = "not_found", [ERR_CONFLICT] = "conflict",
        [ERR_IO] = "io",           [ERR_NO_MEMORY] = "no_memory", [ERR_TIMEOUT] = "timeout",
        [ERR_ABORTED] = "aborted", [ERR_INTERNAL] = "internal",
    };
    return names[kind];
}

void err_free(struct err *e)
{
    if (e && (void *)e != &no_memory)
        free(e);
}
