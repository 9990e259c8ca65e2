#include "daemon/base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/utf8.h"

#define NUL_ESCAPE "\\u0000"
#define NUL_ESCAPE_BYTES (sizeof NUL_ESCAPE - 1)

/* ---- Memory ---- */

static _Thread_local bool was_short;

static void *allocate(size_t bytes)
{
    void *p = malloc(bytes);
    was_short = was_short || !p;
    return p;
}

__attribute__((constructor)) static void watch_memory(void)
{
    cJSON_InitHooks(&(cJSON_Hooks){.malloc_fn = allocate, .free_fn = free});
}

char *json_print(const cJSON *json)
{
    char *text = cJSON_PrintUnformatted(json);
    if (was_short) {
        free(text);
        text = NULL;
    }
    was_short = false;
    return text;
}

/* ---- Reading ---- */

static bool fail(struct json_fault *fault, size_t offset, const char *what)
{
    fault->offset = offset;
    snprintf(fault->what, sizeof fault->what, "%s", what);
    return false;
}

/* The first escape \u0000 at or after `begin`, or NULL. Outside strings no backslash may stand at
 * all, so only pairs of them have to be told apart. */
static const char *find_nul_escape(const char *begin, const char *end)
{
    const char *p = begin;
    while ((p = memchr(p, '\\', (size_t)(end - p)))) {
        if ((size_t)(end - p) >= NUL_ESCAPE_BYTES && memcmp(p, NUL_ESCAPE, NUL_ESCAPE_BYTES) == 0)
            return p;
        if (end - p < 2)
            return NULL;
        p += 2;
    }
    return NULL;
}

static bool check(const char *text, size_t length, struct json_fault *fault)
{
    const char *nul = memchr(text, 0, length);
    if (nul)
        return fail(fault, (size_t)(nul - text), "a NUL byte: this is not text");
    size_t good = utf8_check(text, length);
    if (good < length) {
        fail(fault, good, "");
        snprintf(fault->what, sizeof fault->what, "byte 0x%02x is not UTF-8",
                 (unsigned char)text[good]);
        return false;
    }
    return true;
}

/* Replaces each \u0000 by JSON_NUL; returns the new length. */
static size_t fold_nul(char *text, size_t length)
{
    char *to = text;
    const char *from = text, *end = text + length, *nul;
    while ((nul = find_nul_escape(from, end))) {
        size_t n = (size_t)(nul - from);
        memmove(to, from, n);
        to += n;
        *to++ = JSON_NUL;
        from = nul + NUL_ESCAPE_BYTES;
    }
    memmove(to, from, (size_t)(end - from));
    return (size_t)(to - text) + (size_t)(end - from);
}

/* `offset` in the folded text, seen in the text as it was. */
static size_t unfold(const char *text, size_t offset)
{
    size_t folds = 0;
    for (size_t i = 0; i < offset; i++)
        folds += text[i] == JSON_NUL;
    return offset + folds * (NUL_ESCAPE_BYTES - 1);
}

static bool parse(const char *text, size_t length, cJSON **out, struct json_fault *fault)
{
    const char *end = text;
    *out = NULL;
    if (length == 0)
        return fail(fault, 0, "there is no JSON here");
    bool before = was_short;
    was_short = false;
    cJSON *json = cJSON_ParseWithLengthOpts(text, length, &end, false);
    fault->no_memory = was_short;
    was_short = before;
    if (fault->no_memory)
        return fail(fault, 0, "memory is short");
    if (!json)
        return fail(fault, (size_t)(end - text), "not JSON around here");
    while (end < text + length && (*end == ' ' || *end == '\t' || *end == '\r' || *end == '\n'))
        end++;
    if (end < text + length) {
        cJSON_Delete(json);
        return fail(fault, (size_t)(end - text), "more text after the JSON value's end");
    }
    *out = json;
    return true;
}

bool json_parse_line(char *text, size_t length, bool keep_nul, cJSON **out,
                     struct json_fault *fault)
{
    *out = NULL;
    *fault = (struct json_fault){0};
    if (!check(text, length, fault))
        return false;
    if (keep_nul) {
        length = fold_nul(text, length);
        if (parse(text, length, out, fault))
            return true;
        fault->offset = unfold(text, fault->offset);
        return false;
    }
    const char *nul = find_nul_escape(text, text + length);
    if (nul)
        return fail(fault, (size_t)(nul - text), "the escape \\u0000 is not accepted");
    return parse(text, length, out, fault);
}

struct err *json_parse(const char *text, size_t length, cJSON **out)
{
    struct json_fault fault;
    /* Without keep_nul the text is only read. */
    if (json_parse_line((char *)text, length, false, out, &fault))
        return NULL;
    if (fault.no_memory)
        return err_no_memory();
    size_t line = 1, start = 0;
    for (size_t i = 0; i < fault.offset && i < length; i++) {
        if (text[i] == '\n') {
            line++;
            start = i + 1;
        }
    }
    return err_new(ERR_INVALID, "line %zu, byte %zu: %s", line, fault.offset - start + 1,
                   fault.what);
}
