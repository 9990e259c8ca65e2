#include "daemon/base/json_cursor.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_BYTES 64

struct json_cursor json_cursor(const char *text, size_t length)
{
    return (struct json_cursor){.begin = text, .at = text, .end = text + length};
}

size_t json_cursor_offset(const struct json_cursor *c)
{
    return (size_t)(c->at - c->begin);
}

static bool fail(struct json_cursor *c, const char *what)
{
    if (!c->what)
        c->what = what;
    return false;
}

/* The next character that is no space, which stays; 0 at the end or after a fault. */
static char peek(struct json_cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r'))
        c->at++;
    return c->what || c->at == c->end ? 0 : *c->at;
}

static bool take(struct json_cursor *c, char wanted)
{
    if (peek(c) != wanted)
        return false;
    c->at++;
    return true;
}

char json_cursor_kind(struct json_cursor *c)
{
    char first = peek(c);
    if (first == '-' || (first >= '0' && first <= '9'))
        return '-';
    return first && strchr("{[\"tfn", first) ? first : 0;
}

bool json_cursor_enter(struct json_cursor *c, char bracket)
{
    return take(c, bracket) || fail(c, bracket == '{' ? "an object" : "an array");
}

bool json_cursor_next(struct json_cursor *c, char bracket)
{
    char close = bracket == '{' ? '}' : ']';
    if (take(c, close))
        return false;
    if (peek(c) == 0)
        return fail(c, bracket == '{' ? "'}'" : "']'");
    /* Behind a member there is a comma; before the first there is none to take. */
    take(c, ',');
    return true;
}

/* ---- Strings ---- */

struct sink {
    char *out;
    size_t size, length;
};

static void emit(struct sink *s, char byte)
{
    if (s->length + 1 < s->size)
        s->out[s->length] = byte;
    s->length++;
}

static void emit_code_point(struct sink *s, uint32_t code)
{
    if (code < 0x80) {
        emit(s, (char)code);
    } else if (code < 0x800) {
        emit(s, (char)(0xc0 | code >> 6));
        emit(s, (char)(0x80 | (code & 0x3f)));
    } else if (code < 0x10000) {
        emit(s, (char)(0xe0 | code >> 12));
        emit(s, (char)(0x80 | (code >> 6 & 0x3f)));
        emit(s, (char)(0x80 | (code & 0x3f)));
    } else {
        emit(s, (char)(0xf0 | code >> 18));
        emit(s, (char)(0x80 | (code >> 12 & 0x3f)));
        emit(s, (char)(0x80 | (code >> 6 & 0x3f)));
        emit(s, (char)(0x80 | (code & 0x3f)));
    }
}

/* Four hexadecimal digits behind "\u". */
static bool hex(struct json_cursor *c, uint32_t *out)
{
    *out = 0;
    if (c->end - c->at < 4)
        return fail(c, "four hexadecimal digits");
    for (int i = 0; i < 4; i++) {
        char digit = *c->at;
        uint32_t value = digit >= '0' && digit <= '9'   ? (uint32_t)(digit - '0')
                         : digit >= 'a' && digit <= 'f' ? (uint32_t)(digit - 'a') + 10
                         : digit >= 'A' && digit <= 'F' ? (uint32_t)(digit - 'A') + 10
                                                        : 16;
        if (value == 16)
            return fail(c, "four hexadecimal digits");
        *out = *out << 4 | value;
        c->at++;
    }
    return true;
}

static bool unicode_escape(struct json_cursor *c, struct sink *s)
{
    uint32_t code, low;
    if (!hex(c, &code))
        return false;
    if (code >= 0xd800 && code < 0xdc00) {
        if (c->end - c->at < 2 || c->at[0] != '\\' || c->at[1] != 'u')
            return fail(c, "the second half of a surrogate pair");
        c->at += 2;
        if (!hex(c, &low))
            return false;
        if (low < 0xdc00 || low >= 0xe000)
            return fail(c, "the second half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10 | (low - 0xdc00));
    }
    emit_code_point(s, code);
    return true;
}

static bool escape(struct json_cursor *c, struct sink *s)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char kind = *c->at++;
    if (kind == 'u')
        return unicode_escape(c, s);
    const char *found = kind ? strchr(from, kind) : NULL;
    if (!found)
        return fail(c, "an escape that JSON has");
    emit(s, to[found - from]);
    return true;
}

bool json_cursor_string(struct json_cursor *c, char *out, size_t size, size_t *length)
{
    struct sink s = {out, size, 0};
    if (!take(c, '"'))
        return fail(c, "a string");
    while (c->at < c->end && *c->at != '"') {
        if (*c->at != '\\')
            emit(&s, *c->at++);
        else if (++c->at == c->end || !escape(c, &s))
            return fail(c, "the rest of an escape");
    }
    if (c->at == c->end)
        return fail(c, "the end of a string");
    c->at++;
    if (size > 0)
        out[s.length < size ? s.length : size - 1] = 0;
    *length = s.length;
    return true;
}

bool json_cursor_key(struct json_cursor *c, char *out, size_t size, size_t *length)
{
    return json_cursor_string(c, out, size, length) && (take(c, ':') || fail(c, "':'"));
}

/* ---- Other values ---- */

bool json_cursor_number(struct json_cursor *c, double *out)
{
    char text[NUMBER_BYTES], *end;
    size_t n = 0;
    if (json_cursor_kind(c) != '-')
        return fail(c, "a number");
    while (c->at + n < c->end && n + 1 < sizeof text && c->at[n] &&
           strchr("+-.eE0123456789", c->at[n]))
        n++;
    memcpy(text, c->at, n);
    text[n] = 0;
    *out = strtod(text, &end);
    if (end != text + n)
        return fail(c, "a number");
    c->at += n;
    return true;
}

bool json_cursor_skip(struct json_cursor *c)
{
    size_t depth = 0, length;
    do {
        char first = peek(c);
        if (first == 0)
            return fail(c, "a value");
        if (first == '"') {
            if (!json_cursor_string(c, NULL, 0, &length))
                return false;
            continue;
        }
        c->at++;
        if (first == '{' || first == '[') {
            depth++;
        } else if (first == '}' || first == ']') {
            if (depth == 0)
                return fail(c, "a value");
            depth--;
        } else if (first != ',' && first != ':') {
            while (c->at < c->end && !memchr(" \n\t\r,:{}[]\"", *c->at, 11))
                c->at++; /* a number, true, false or null */
        } else if (depth == 0) {
            return fail(c, "a value");
        }
    } while (depth > 0);
    return true;
}
