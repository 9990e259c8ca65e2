#include "api/doc.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/base/json.h"

#define KEYS_OF_AN_OBJECT 1024 /* more are refused: comparing them takes quadratic time */

/* Line and column, both from 1, of a byte of text that was UTF-8 up to there. */
static void position(const char *text, size_t at, int *line, int *column)
{
    *line = 1;
    *column = 1;
    for (size_t i = 0; i < at; i++) {
        if (text[i] == '\n') {
            ++*line;
            *column = 1;
        } else if (((unsigned char)text[i] & 0xc0) != 0x80) {
            ++*column;
        }
    }
}

static struct err *check_keys(const cJSON *json, const char *what)
{
    const cJSON *a, *b;
    int count = 0;
    cJSON_ArrayForEach(a, json)
    {
        TRY(check_keys(a, what));
        if (!cJSON_IsObject(json))
            continue;
        if (++count > KEYS_OF_AN_OBJECT)
            return err_new(ERR_INVALID, "%s has an object with more than %d keys", what,
                           KEYS_OF_AN_OBJECT);
        for (b = json->child; b != a; b = b->next)
            if (strcmp(a->string, b->string) == 0)
                return err_new(ERR_INVALID, "%s has the key \"%.100s\" twice in one object", what,
                               a->string);
    }
    return NULL;
}

struct err *doc_read_object(char *text, size_t bytes, const char *what, cJSON **out)
{
    *out = NULL;
    if (strspn(text, " \t\r\n") == bytes)
        return err_new(ERR_INVALID, "%s is empty; a JSON object is expected", what);
    cJSON *json = NULL;
    struct json_fault fault;
    if (!json_parse_line(text, bytes, false, &json, &fault)) {
        int line, column;
        if (fault.no_memory)
            return err_no_memory();
        position(text, fault.offset < bytes ? fault.offset : bytes, &line, &column);
        return err_new(ERR_INVALID, "%s is not valid JSON: line %d, column %d: %s", what, line,
                       column, fault.what);
    }
    struct err *err = NULL;
    if (!cJSON_IsObject(json))
        err = err_new(ERR_INVALID, "%s must be a JSON object", what);
    else
        err = check_keys(json, what);
    if (err) {
        cJSON_Delete(json);
        return err;
    }
    *out = json;
    return NULL;
}

cJSON *doc_text(cJSON *object, const char *key, const char *value)
{
    return value ? cJSON_AddStringToObject(object, key, value) : cJSON_AddNullToObject(object, key);
}

cJSON *doc_integer(cJSON *object, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return cJSON_AddRawToObject(object, key, text);
}

cJSON *doc_time(cJSON *object, const char *key, double time_s)
{
    if (time_s <= 0)
        return cJSON_AddNullToObject(object, key);
    int64_t ms = (int64_t)floor(time_s * 1000 + 0.5);
    time_t seconds = (time_t)(ms / 1000);
    struct tm utc;
    char text[64];
    if (!gmtime_r(&seconds, &utc))
        return cJSON_AddNullToObject(object, key);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + n, sizeof text - n, ".%03dZ", (int)(ms % 1000));
    return cJSON_AddStringToObject(object, key, text);
}

cJSON *doc_number_value(double value)
{
    if (isnan(value))
        return cJSON_CreateString("nan");
    if (isinf(value))
        return cJSON_CreateString(value > 0 ? "inf" : "-inf");
    return cJSON_CreateNumber(value);
}

cJSON *doc_number(cJSON *object, const char *key, double value)
{
    return doc_item(object, key, doc_number_value(value));
}

cJSON *doc_raw(cJSON *object, const char *key, const char *text)
{
    return text ? cJSON_AddRawToObject(object, key, text) : cJSON_AddNullToObject(object, key);
}

cJSON *doc_item(cJSON *object, const char *key, cJSON *value)
{
    if (value && !cJSON_AddItemToObject(object, key, value)) {
        cJSON_Delete(value);
        return NULL;
    }
    return value;
}

cJSON *doc_push(cJSON *array, cJSON *value)
{
    if (value && !cJSON_AddItemToArray(array, value)) {
        cJSON_Delete(value);
        return NULL;
    }
    return value;
}
