/* JSON read from front to back without building it: for files of which a few members matter and the
 * rest is large. It checks what it needs to find its way, not that the whole is well-formed:
 * whoever uses the file for what it is reads it with json.h.
 *
 * Nothing is allocated. After a fault every call returns false, and `what` says what was expected.
 */
#ifndef BASE_JSON_CURSOR_H
#define BASE_JSON_CURSOR_H

#include <stdbool.h>
#include <stddef.h>

struct json_cursor {
    const char *begin, *at, *end;
    const char *what; /* NULL: no fault so far */
};

struct json_cursor json_cursor(const char *text, size_t length);
/* Bytes before the place where it stands, or where the fault is. */
size_t json_cursor_offset(const struct json_cursor *c);

/* The kind of the value that follows, by its first character: one of `{["tfn` and '-' for any
 * number; 0 for none. */
char json_cursor_kind(struct json_cursor *c);

/* Into an object ('{') or array ('['); false: another value follows, which is a fault. */
bool json_cursor_enter(struct json_cursor *c, char bracket);
/* In an object or array, before its first member or behind one: whether another follows. False also
 * leaves it. */
bool json_cursor_next(struct json_cursor *c, char bracket);
/* A member's key, with its colon; or a string. At most `size` - 1 bytes of it, decoded and
 * NUL-terminated, go to `out`; *length is its whole length. */
bool json_cursor_key(struct json_cursor *c, char *out, size_t size, size_t *length);
bool json_cursor_string(struct json_cursor *c, char *out, size_t size, size_t *length);
bool json_cursor_number(struct json_cursor *c, double *out);
/* Past whatever follows. */
bool json_cursor_skip(struct json_cursor *c);

#endif
