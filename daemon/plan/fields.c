#include "daemon/plan/fields.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *field_type_name(const cJSON *item)
{
    switch (item->type & 0xff) {
    case cJSON_False:
        return "false";
    case cJSON_True:
        return "true";
    case cJSON_NULL:
        return "null";
    case cJSON_Number:
        return "a number";
    case cJSON_String:
        return "a string";
    case cJSON_Array:
        return "an array";
    case cJSON_Object:
        return "an object";
    default:
        return "not JSON";
    }
}

/* A value as the message quotes it. */
#define QUOTED_BYTES 48

static void quote(char out[static QUOTED_BYTES], const char *text)
{
    size_t n = strlen(text), room = QUOTED_BYTES - 6;
    size_t keep = n < room ? n : room;
    char *p = out;
    *p++ = '"';
    for (size_t i = 0; i < keep; i++)
        *p++ = text[i] >= 0x20 && text[i] < 0x7f ? text[i] : '?';
    snprintf(p, QUOTED_BYTES - (size_t)(p - out), keep < n ? "...\"" : "\"");
}

bool field_integer(const cJSON *item, const char *path, int64_t least, int64_t most, int64_t *out,
                   struct problems *problems)
{
    char wanted[96];
    if (most >= FIELDS_MAX_INTEGER)
        snprintf(wanted, sizeof wanted, "an integer from %" PRId64 " to 2^53", least);
    else
        snprintf(wanted, sizeof wanted, "an integer from %" PRId64 " to %" PRId64, least, most);
    if (!cJSON_IsNumber(item)) {
        problems_add(problems, path, "is %s but must be %s", field_type_name(item), wanted);
        return false;
    }
    double value = item->valuedouble;
    if (!isfinite(value) || value != floor(value) || fabs(value) > (double)FIELDS_MAX_INTEGER ||
        (int64_t)value < least || (int64_t)value > most) {
        problems_add(problems, path, "is %.17g but must be %s", value, wanted);
        return false;
    }
    *out = (int64_t)value;
    return true;
}

bool field_number(const cJSON *item, const char *path, struct field_range r, double *out,
                  struct problems *problems)
{
    char upper[64] = "", wanted[128];
    if (isfinite(r.most))
        snprintf(upper, sizeof upper, " and %s %g", r.open_most ? "below" : "at most", r.most);
    snprintf(wanted, sizeof wanted, "a number %s %g%s", r.open_least ? "above" : "of at least",
             r.least, upper);
    if (!cJSON_IsNumber(item)) {
        problems_add(problems, path, "is %s but must be %s", field_type_name(item), wanted);
        return false;
    }
    double value = item->valuedouble;
    if (!isfinite(value) || value < r.least || (r.open_least && value == r.least) ||
        value > r.most || (r.open_most && value == r.most)) {
        problems_add(problems, path, "is %.9g but must be %s", value, wanted);
        return false;
    }
    *out = value;
    return true;
}

bool field_bool(const cJSON *item, const char *path, bool *out, struct problems *problems)
{
    if (!cJSON_IsBool(item)) {
        problems_add(problems, path, "is %s but must be true or false", field_type_name(item));
        return false;
    }
    *out = cJSON_IsTrue(item);
    return true;
}

bool field_string(const cJSON *item, const char *path, size_t max_bytes, const char **out,
                  struct problems *problems)
{
    if (!cJSON_IsString(item)) {
        problems_add(problems, path, "is %s but must be a string", field_type_name(item));
        return false;
    }
    const char *text = item->valuestring;
    size_t n = strlen(text);
    if (n == 0 || n > max_bytes) {
        problems_add(problems, path, "is a string of %zu bytes but must have 1 to %zu", n,
                     max_bytes);
        return false;
    }
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            problems_add(problems, path,
                         "holds the control character 0x%02x but must be printable text",
                         (unsigned char)text[i]);
            return false;
        }
    }
    *out = text;
    return true;
}

bool field_enum(const cJSON *item, const char *path, const char *const *names, int *out,
                struct problems *problems)
{
    char value[QUOTED_BYTES] = "";
    if (cJSON_IsString(item)) {
        for (int i = 0; names[i]; i++) {
            if (strcmp(item->valuestring, names[i]) == 0) {
                *out = i;
                return true;
            }
        }
        quote(value, item->valuestring);
    }
    char wanted[256];
    size_t used = 0;
    wanted[0] = 0;
    for (int i = 0; names[i] && used < sizeof wanted; i++) {
        const char *between = i == 0 ? "" : names[i + 1] ? ", " : " or ";
        used +=
            (size_t)snprintf(wanted + used, sizeof wanted - used, "%s\"%s\"", between, names[i]);
    }
    problems_add(problems, path, "is %s but must be %s",
                 cJSON_IsString(item) ? value : field_type_name(item), wanted);
    return false;
}

const cJSON *field_get(const cJSON *object, const char *path, const char *key,
                       struct problems *problems)
{
    const cJSON *found = NULL;
    for (const cJSON *item = object->child; item; item = item->next) {
        if (!item->string || strcmp(item->string, key) != 0)
            continue;
        if (found) {
            char pointer[FIELDS_POINTER_BYTES];
            field_pointer(pointer, path, key);
            problems_add(problems, pointer, "is there more than once but must be there once");
            break;
        }
        found = item;
    }
    return found;
}

void field_pointer(char out[static FIELDS_POINTER_BYTES], const char *path, const char *key)
{
    size_t used = strlen(path);
    if (used > FIELDS_POINTER_BYTES - 8)
        used = FIELDS_POINTER_BYTES - 8;
    memcpy(out, path, used);
    out[used++] = '/';
    for (const char *p = key; *p; p++) {
        if (used > FIELDS_POINTER_BYTES - 7) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        if (*p == '~' || *p == '/') {
            out[used++] = '~';
            out[used++] = *p == '~' ? '0' : '1';
        } else {
            out[used++] = *p >= 0x20 && *p < 0x7f ? *p : '?';
        }
    }
    out[used] = 0;
}
