#include "daemon/plan/config_reader.h"

const cJSON *config_member(const struct config_reader *r, const char *key,
                           char pointer[static FIELDS_POINTER_BYTES])
{
    field_pointer(pointer, r->path, key);
    const cJSON *item = field_get(r->json, r->path, key, r->problems);
    return item && !cJSON_IsNull(item) ? item : NULL;
}

void config_integer(const struct config_reader *r, const char *key, int64_t least, int64_t most,
                    int64_t fallback, int64_t *out)
{
    char pointer[FIELDS_POINTER_BYTES];
    const cJSON *item = config_member(r, key, pointer);
    if (item)
        field_integer(item, pointer, least, most, out, r->problems);
    else if (fallback)
        *out = fallback;
    else
        problems_add(r->problems, pointer, "is missing but must be a positive integer");
}

double config_number(const struct config_reader *r, const char *key, struct field_range range,
                     double fallback)
{
    char pointer[FIELDS_POINTER_BYTES];
    double value = fallback;
    const cJSON *item = config_member(r, key, pointer);
    if (item)
        field_number(item, pointer, range, &value, r->problems);
    return value;
}

double config_number_needed(const struct config_reader *r, const char *key,
                            struct field_range range)
{
    char pointer[FIELDS_POINTER_BYTES];
    if (!config_member(r, key, pointer))
        problems_add(r->problems, pointer, "is missing but must be a number");
    return config_number(r, key, range, 0);
}

bool config_bool(const struct config_reader *r, const char *key, bool fallback)
{
    char pointer[FIELDS_POINTER_BYTES];
    bool value = fallback;
    const cJSON *item = config_member(r, key, pointer);
    if (item)
        field_bool(item, pointer, &value, r->problems);
    return value;
}

void config_refuse_number_but(const struct config_reader *r, const char *key, double only)
{
    char pointer[FIELDS_POINTER_BYTES];
    const cJSON *item = config_member(r, key, pointer);
    if (item && (!cJSON_IsNumber(item) || item->valuedouble != only))
        problems_add(r->problems, pointer, "is not supported: only %g is", only);
}

void config_refuse_true(const struct config_reader *r, const char *key)
{
    char pointer[FIELDS_POINTER_BYTES];
    const cJSON *item = config_member(r, key, pointer);
    if (item && !cJSON_IsFalse(item))
        problems_add(r->problems, pointer, "is not supported: only false is");
}

void config_refuse(const struct config_reader *r, const char *key)
{
    char pointer[FIELDS_POINTER_BYTES];
    if (config_member(r, key, pointer))
        problems_add(r->problems, pointer, "is not supported: it must be null or left out");
}
