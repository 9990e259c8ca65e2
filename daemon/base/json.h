/* JSON through cJSON, but stricter. From outside: exactly one value, well-formed UTF-8, and no NUL
 * that would silently end a string early, since cJSON's strings are C strings. And short memory is
 * told: cJSON leaves out the member that it could not make, and takes a text that it could not hold
 * for a wrong one.
 */
#ifndef BASE_JSON_H
#define BASE_JSON_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "daemon/base/err.h"

/* The value is the caller's (cJSON_Delete). ERR_INVALID names line and byte. */
struct err *json_parse(const char *text, size_t length, cJSON **out);

/* On one line, freed by the caller. NULL: `json` is NULL, or memory was short here or while this
 * thread made the value. */
char *json_print(const cJSON *json);

/* What is wrong with a text, where. */
struct json_fault {
    bool no_memory; /* nothing: it could not be read */
    size_t offset;
    char what[160];
};

/* As json_parse for one line of a larger text: false fills *fault. With `keep_nul` strings may hold
 * the escape \u0000: JSON_NUL stands for it in the value. `text` is scratch and changed. */
bool json_parse_line(char *text, size_t length, bool keep_nul, cJSON **out,
                     struct json_fault *fault);

/* A byte that no UTF-8 holds. */
#define JSON_NUL ((char)0xff)

#endif
