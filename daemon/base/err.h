/* Errors as values.
 *
 * A function that can fail returns `struct err *`: NULL is success, anything else is owned by the
 * caller, who handles it, returns it, wraps it (err_wrap) or frees it (err_free). Nothing below
 * main() prints an error and goes on. A message is one sentence that names the thing, the place
 * and what would be right.
 */
#ifndef BASE_ERR_H
#define BASE_ERR_H

#include <stdarg.h>
#include <stdbool.h>

enum err_kind {
    ERR_INVALID,   /* the input is wrong: somebody outside must change it (HTTP 4xx) */
    ERR_NOT_FOUND, /* the named thing does not exist */
    ERR_CONFLICT,  /* right in itself, but not in the present state */
    ERR_IO,        /* a file, socket or disk refused */
    ERR_NO_MEMORY,
    ERR_TIMEOUT,
    ERR_ABORTED,  /* another rank or the daemon ended this on purpose */
    ERR_INTERNAL, /* a fault of ours */
};

struct err;

/* Never returns NULL: if memory is short, a static out-of-memory error comes back. */
struct err *err_new(enum err_kind kind, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* ERR_IO with ": strerror(errno)" behind the message; ENOMEM becomes ERR_NO_MEMORY. */
struct err *err_errno(int errnum, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* "<format>: <inner message>"; takes ownership of inner and keeps its kind. */
struct err *err_wrap(struct err *inner, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
struct err *err_no_memory(void);

const char *err_message(const struct err *e);
enum err_kind err_kind(const struct err *e);
const char *err_kind_name(enum err_kind kind);
void err_free(struct err *e);

/* Returns the error of an expression from the calling function, if there is one. */
#define TRY(expression)                                                                            \
    do {                                                                                           \
        struct err *try_err = (expression);                                                        \
        if (try_err)                                                                               \
            return try_err;                                                                        \
    } while (0)

#endif
