/* Fields of a Hugging Face config.json. A member that is null counts as left out, as the
 * transformers library has it. Private to plan/. */
#ifndef PLAN_CONFIG_READER_H
#define PLAN_CONFIG_READER_H

#include "daemon/plan/fields.h"

struct config_reader {
    const cJSON *json; /* an object */
    const char *path;  /* JSON pointer of it, for problems */
    struct problems *problems;
};

/* A member that is there and not null; its pointer goes to `pointer`. */
const cJSON *config_member(const struct config_reader *r, const char *key,
                           char pointer[static FIELDS_POINTER_BYTES]);

/* fallback 0: the field has none, and its absence is a problem. */
void config_integer(const struct config_reader *r, const char *key, int64_t least, int64_t most,
                    int64_t fallback, int64_t *out);
double config_number(const struct config_reader *r, const char *key, struct field_range range,
                     double fallback);
/* As config_number, for a field without which the rest has no meaning; 0 and a problem where it is
 * missing. */
double config_number_needed(const struct config_reader *r, const char *key,
                            struct field_range range);
bool config_bool(const struct config_reader *r, const char *key, bool fallback);

/* What would change the mathematics in a way that is not built is a problem. */
void config_refuse_number_but(const struct config_reader *r, const char *key, double only);
void config_refuse_true(const struct config_reader *r, const char *key);
void config_refuse(const struct config_reader *r, const char *key);

#endif
