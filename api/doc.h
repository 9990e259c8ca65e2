/* JSON documents, in and out. */
#ifndef API_DOC_H
#define API_DOC_H

#include <cjson/cJSON.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

/* Reads one JSON object. ERR_INVALID says what is wrong and where, by line and column (in
 * characters): text that is not UTF-8, broken syntax, something behind the end, a NUL character in
 * a string, a key twice in one object. `what` names the text in the message. `text` is changed. */
struct err *doc_read_object(char *text, size_t bytes, const char *what, cJSON **out);

/* Members of an object that is being made. A missing text and a zero time become null. A NULL
 * object is allowed everywhere; a failed allocation leaves the member out and returns NULL. */
cJSON *doc_text(cJSON *object, const char *key, const char *value);
cJSON *doc_integer(cJSON *object, const char *key, int64_t value); /* exact beyond 2^53 */
/* Seconds since 1970 as "2026-01-02T03:04:05.678Z". */
cJSON *doc_time(cJSON *object, const char *key, double time_s);
cJSON *doc_number(cJSON *object, const char *key, double value);
/* JSON of our own, from the database, as it is; NULL becomes null. */
cJSON *doc_raw(cJSON *object, const char *key, const char *text);
/* A new member that takes `value`; deletes it where that fails. */
cJSON *doc_item(cJSON *object, const char *key, cJSON *value);
/* Likewise the next element of an array. */
cJSON *doc_push(cJSON *array, cJSON *value);

/* A number, or "nan", "inf", "-inf", which JSON has no numbers for. */
cJSON *doc_number_value(double value);

#endif
