#include "api/router.h"

#include <stdlib.h>
#include <string.h>

/* A decimal number from 1 that fits, of `length` characters without leading zeros. */
static bool parse_id(const char *text, size_t length, int64_t *out)
{
    if (length == 0 || length > 18 || text[0] == '0')
        return false;
    int64_t value = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (text[i] - '0');
    }
    *out = value;
    return true;
}

static bool matches(const char *pattern, const char *path, int64_t *id)
{
    while (*pattern && *path) {
        if (strncmp(pattern, "{id}", 4) == 0) {
            size_t length = strcspn(path, "/");
            if (!parse_id(path, length, id))
                return false;
            pattern += 4;
            path += length;
        } else if (*pattern++ != *path++) {
            return false;
        }
    }
    return !*pattern && !*path;
}

static void allow(struct router_match *out, const char *method)
{
    if (out->allow[0])
        strncat(out->allow, ", ", sizeof out->allow - strlen(out->allow) - 1);
    strncat(out->allow, method, sizeof out->allow - strlen(out->allow) - 1);
}

void router_find(const struct route *routes, size_t count, const char *method, const char *path,
                 struct router_match *out)
{
    *out = (struct router_match){0};
    if (strcmp(method, "HEAD") == 0)
        method = "GET";
    for (size_t i = 0; i < count; i++) {
        int64_t id = 0;
        if (!matches(routes[i].pattern, path, &id))
            continue;
        out->path_known = true;
        if (strcmp(routes[i].method, method) == 0) {
            out->route = &routes[i];
            out->id = id;
            return;
        }
        allow(out, routes[i].method);
        if (strcmp(routes[i].method, "GET") == 0)
            allow(out, "HEAD");
    }
}
