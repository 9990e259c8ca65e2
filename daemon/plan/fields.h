/* Reading one value of a JSON document into a C type, with a problem where it does not fit.
 *
 * cJSON keeps every number as a double and says nothing about ranges, so each reader checks type,
 * finiteness and range. A reader that adds a problem leaves its output untouched and returns
 * false.
 */
#ifndef PLAN_FIELDS_H
#define PLAN_FIELDS_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/plan/problems.h"

/* Doubles hold every integer up to here. */
#define FIELDS_MAX_INTEGER ((int64_t)1 << 53)

#define FIELDS_POINTER_BYTES 192

/* A range of real numbers. An open end excludes its bound. */
struct field_range {
    double least, most;
    bool open_least, open_most;
};

bool field_integer(const cJSON *item, const char *path, int64_t least, int64_t most, int64_t *out,
                   struct problems *problems);
bool field_number(const cJSON *item, const char *path, struct field_range range, double *out,
                  struct problems *problems);
bool field_bool(const cJSON *item, const char *path, bool *out, struct problems *problems);
/* Borrowed from the document; at least one byte, at most max_bytes, no control characters. */
bool field_string(const cJSON *item, const char *path, size_t max_bytes, const char **out,
                  struct problems *problems);
/* Index into `names` (NULL-terminated). */
bool field_enum(const cJSON *item, const char *path, const char *const *names, int *out,
                struct problems *problems);

/* The member, or NULL where there is none. A key that stands twice is a problem, since readers of
 * JSON disagree about which one counts. */
const cJSON *field_get(const cJSON *object, const char *path, const char *key,
                       struct problems *problems);

/* "<path>/<key>", the key escaped as RFC 6901 asks, unprintable bytes as '?', cut where it is too
 * long: it is for people to read. */
void field_pointer(char out[static FIELDS_POINTER_BYTES], const char *path, const char *key);

/* "a string", "an object", ... for messages. */
const char *field_type_name(const cJSON *item);

#endif
