#include "daemon/worker/data/record.h"

#include <stdio.h>
#include <string.h>

static bool fail(struct json_fault *fault, const char *format, const char *a, const char *b)
{
    fault->offset = 0;
    snprintf(fault->what, sizeof fault->what, format, a, b);
    return false;
}

static const cJSON *find(const cJSON *object, const char *field)
{
    const cJSON *found = cJSON_GetObjectItemCaseSensitive(object, field);
    const char *dot = strchr(field, '.');
    for (; !found && dot; dot = strchr(dot + 1, '.')) {
        for (const cJSON *item = object->child; item && !found; item = item->next)
            if (item->string && strncmp(item->string, field, (size_t)(dot - field)) == 0 &&
                strlen(item->string) == (size_t)(dot - field) && cJSON_IsObject(item))
                found = find(item, dot + 1);
    }
    return found;
}

/* The first names of the record, for somebody who named the wrong one. */
static void list_names(const cJSON *object, char *out, size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (const cJSON *item = object->child; item && used + 24 < size; item = item->next)
        used +=
            (size_t)snprintf(out + used, size - used, "%s%.20s", used ? ", " : "", item->string);
}

bool record_text(char *line, size_t bytes, const char *field, struct record *out,
                 struct json_fault *fault)
{
    *out = (struct record){0};
    *fault = (struct json_fault){0};
    if (!json_parse_line(line, bytes, true, &out->json, fault))
        return false;
    if (!cJSON_IsObject(out->json))
        return fail(fault, "the record must be an object with the field \"%.40s\"%s", field, "");
    const cJSON *item = find(out->json, field);
    if (!item) {
        char names[64];
        list_names(out->json, names, sizeof names);
        return fail(fault, "no field \"%.40s\"; the record has: %s", field, names);
    }
    if (!cJSON_IsString(item))
        return fail(fault, "the field \"%.40s\" must be a string%s", field, "");
    out->text = item->valuestring;
    out->bytes = strlen(out->text);
    for (char *p = out->text; (p = memchr(p, JSON_NUL, (size_t)(out->text + out->bytes - p))); p++)
        *p = 0;
    return true;
}
