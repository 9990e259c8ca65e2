/* The spec as JSON: resolved, and as a schema. Both follow the table of fields. */
#include "daemon/plan/spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/spec_fields.h"

/* The double with the shortest decimal form that still rounds to `value`: a learning rate of 1e-5
 * is shown as 1e-05, not as 9.99999974737875e-06. */
static double shortest(float value)
{
    char text[32];
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value)
            return strtod(text, NULL);
    }
    return value;
}

static cJSON *pair(double first, double second)
{
    const double numbers[] = {first, second};
    return cJSON_CreateDoubleArray(numbers, 2);
}

/* ---- Resolved ---- */

static cJSON *value_json(const struct spec_field *f, const struct job_spec *s)
{
    const void *at = (const char *)s + f->offset;
    switch (f->type) {
    case SPEC_STRING:
    case SPEC_NAME:
        return cJSON_CreateString(*(char *const *)at);
    case SPEC_ENUM:
        return cJSON_CreateString(f->names[f->offset == SPEC_NOT_STORED ? 0 : *(const int *)at]);
    case SPEC_SWITCH:
        return cJSON_CreateString(f->names[*(const bool *)at]);
    case SPEC_BOOL:
        return cJSON_CreateBool(*(const bool *)at);
    case SPEC_INT:
        return cJSON_CreateNumber(*(const int *)at);
    case SPEC_INT64:
        return cJSON_CreateNumber((double)*(const int64_t *)at);
    case SPEC_FLOAT:
        return cJSON_CreateNumber(shortest(*(const float *)at));
    case SPEC_DOUBLE:
        return cJSON_CreateNumber(*(const double *)at);
    case SPEC_PAIR:
        return pair(shortest(((const float *)at)[0]), shortest(((const float *)at)[1]));
    case SPEC_OBJECT:
        return cJSON_CreateObject();
    case SPEC_PARALLEL:
        return s->parallel.automatic ? cJSON_CreateString("auto") : cJSON_CreateObject();
    case SPEC_CONFIG:
        break;
    }
    return NULL;
}

static bool left_out(const struct spec_field *f, const struct job_spec *s,
                     const cJSON *model_config)
{
    if (f->type == SPEC_CONFIG)
        return !model_config;
    if (f->type == SPEC_STRING && f->fallback == SPEC_NONE)
        return !*(char *const *)((const char *)s + f->offset);
    return f->objective != FOR_ANY && !(f->objective & 1u << s->objective.type);
}

cJSON *spec_to_json(const struct job_spec *s, const cJSON *model_config)
{
    cJSON *made[SPEC_MAX_FIELDS] = {NULL}, *root = cJSON_CreateObject();
    for (int i = 0; root && i < spec_n_fields; i++) {
        const struct spec_field *f = &spec_fields[i];
        int section = spec_field_section(i);
        cJSON *into = section < 0 ? root : made[section];
        if (left_out(f, s, model_config) || cJSON_IsString(into) /* "auto" */)
            continue;
        made[i] = f->type == SPEC_CONFIG ? cJSON_Duplicate(model_config, true) : value_json(f, s);
        if (!made[i] || !cJSON_AddItemToObject(into, spec_field_key(f), made[i])) {
            cJSON_Delete(made[i]);
            cJSON_Delete(root);
            return NULL;
        }
    }
    return root;
}

/* ---- Schema ---- */

static bool add_names(cJSON *schema, const char *const *names)
{
    cJSON *list = cJSON_AddArrayToObject(schema, "enum");
    for (int i = 0; list && names[i]; i++)
        if (!cJSON_AddItemToArray(list, cJSON_CreateString(names[i])))
            return false;
    return list && cJSON_AddStringToObject(schema, "type", "string");
}

static bool add_range(cJSON *schema, const struct field_range *r)
{
    return cJSON_AddNumberToObject(schema, r->open_least ? "exclusiveMinimum" : "minimum",
                                   r->least) &&
           (isinf(r->most) || cJSON_AddNumberToObject(
                                  schema, r->open_most ? "exclusiveMaximum" : "maximum", r->most));
}

static bool add_type(cJSON *schema, const struct spec_field *f)
{
    cJSON *items;
    switch (f->type) {
    case SPEC_NAME:
    case SPEC_ENUM:
    case SPEC_SWITCH:
        return add_names(schema, f->names);
    case SPEC_STRING:
        return cJSON_AddStringToObject(schema, "type", "string") &&
               cJSON_AddNumberToObject(schema, "minLength", 1) &&
               cJSON_AddNumberToObject(schema, "maxLength", (double)spec_text_limit(f));
    case SPEC_BOOL:
        return cJSON_AddStringToObject(schema, "type", "boolean");
    case SPEC_INT:
    case SPEC_INT64:
        return cJSON_AddStringToObject(schema, "type", "integer") && add_range(schema, &f->range);
    case SPEC_FLOAT:
    case SPEC_DOUBLE:
        return cJSON_AddStringToObject(schema, "type", "number") && add_range(schema, &f->range);
    case SPEC_PAIR:
        items = cJSON_AddObjectToObject(schema, "items");
        return items && cJSON_AddStringToObject(schema, "type", "array") &&
               cJSON_AddStringToObject(items, "type", "number") && add_range(items, &f->range) &&
               cJSON_AddNumberToObject(schema, "minItems", 2) &&
               cJSON_AddNumberToObject(schema, "maxItems", 2);
    case SPEC_CONFIG:
        return cJSON_AddStringToObject(schema, "type", "object");
    case SPEC_OBJECT:
    case SPEC_PARALLEL:
        return cJSON_AddStringToObject(schema, "type", "object") &&
               cJSON_AddObjectToObject(schema, "properties") &&
               cJSON_AddFalseToObject(schema, "additionalProperties");
    }
    return false;
}

static bool add_default(cJSON *schema, const struct spec_field *f)
{
    cJSON *value;
    if (f->fallback != SPEC_FIXED || spec_is_section(f))
        return true;
    if (f->text)
        value = cJSON_CreateString(f->text);
    else if (f->type == SPEC_ENUM)
        value = cJSON_CreateString(f->names[(int)f->number]);
    else if (f->type == SPEC_BOOL)
        value = cJSON_CreateBool(f->number != 0);
    else if (f->type == SPEC_PAIR)
        value = pair(f->number, f->second);
    else
        value = cJSON_CreateNumber(f->number);
    if (cJSON_AddItemToObject(schema, "default", value))
        return true;
    cJSON_Delete(value);
    return false;
}

static bool require(cJSON *section, const char *key)
{
    cJSON *list = cJSON_GetObjectItemCaseSensitive(section, "required");
    if (!list)
        list = cJSON_AddArrayToObject(section, "required");
    return list && cJSON_AddItemToArray(list, cJSON_CreateString(key));
}

/* Puts the field's schema into its section's; for "parallel" beside the word "auto". Returns the
 * schema that the section's own fields go into. */
static cJSON *add_field(cJSON *section, const struct spec_field *f)
{
    const char *key = spec_field_key(f);
    cJSON *properties = cJSON_GetObjectItemCaseSensitive(section, "properties");
    cJSON *schema = cJSON_AddObjectToObject(properties, key), *inner = schema;
    if (!schema || !cJSON_AddStringToObject(schema, "description", f->about))
        return NULL;
    if (f->type == SPEC_PARALLEL) {
        cJSON *choices = cJSON_AddArrayToObject(schema, "oneOf");
        cJSON *word = cJSON_CreateObject();
        inner = cJSON_CreateObject();
        bool kept = choices && cJSON_AddItemToArray(choices, word);
        if (!kept)
            cJSON_Delete(word);
        if (!kept || !cJSON_AddItemToArray(choices, inner)) {
            cJSON_Delete(inner);
            return NULL;
        }
        if (!cJSON_AddStringToObject(word, "const", "auto"))
            return NULL;
    }
    if (!add_type(inner, f) || !add_default(inner, f) ||
        (f->fallback == SPEC_REQUIRED && !require(section, key)))
        return NULL;
    return inner;
}

cJSON *spec_schema(void)
{
    cJSON *made[SPEC_MAX_FIELDS] = {NULL}, *root = cJSON_CreateObject();
    bool good =
        root &&
        cJSON_AddStringToObject(root, "$schema", "https://json-schema.org/draft/2020-12/schema") &&
        cJSON_AddStringToObject(root, "title", "Job spec") &&
        cJSON_AddStringToObject(root, "type", "object") &&
        cJSON_AddObjectToObject(root, "properties") &&
        cJSON_AddFalseToObject(root, "additionalProperties");
    for (int i = 0; good && i < spec_n_fields; i++) {
        int section = spec_field_section(i);
        made[i] = add_field(section < 0 ? root : made[section], &spec_fields[i]);
        good = made[i] != NULL;
    }
    if (good)
        return root;
    cJSON_Delete(root);
    return NULL;
}
