/* The text of one JSONL record. Private to data/. */
#ifndef WORKER_RECORD_H
#define WORKER_RECORD_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>

#include "daemon/base/json.h"

struct record {
    cJSON *json; /* owns text; cJSON_Delete, whatever record_text returned */
    char *text;  /* may hold NUL bytes */
    size_t bytes;
};

/* Reads the line (which is changed) and finds the string at `field`: a member of that name, or else
 * a path of names with dots between. false: *fault says where in the line, and what would be
 * right. */
bool record_text(char *line, size_t bytes, const char *field, struct record *out,
                 struct json_fault *fault);

#endif
