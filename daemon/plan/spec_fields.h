/* The table of the job spec's fields: parsing, the search for unknown keys, defaults, the resolved
 * JSON and the JSON Schema all come from it. Private to plan/spec*.c.
 */
#ifndef PLAN_SPEC_FIELDS_H
#define PLAN_SPEC_FIELDS_H

#include <stdbool.h>
#include <stddef.h>

#include "daemon/plan/fields.h"
#include "daemon/plan/spec.h"

enum spec_type {
    SPEC_OBJECT,   /* a section: its fields follow it in the table */
    SPEC_PARALLEL, /* a section, or the string "auto" */
    SPEC_CONFIG,   /* a config.json: model_config_parse reads it */
    SPEC_STRING,   /* char * */
    SPEC_NAME,     /* char *, one of `names` */
    SPEC_ENUM,     /* an enum of int's size, index into `names` */
    SPEC_SWITCH,   /* bool, index into two `names` */
    SPEC_BOOL,
    SPEC_INT,    /* int, int32_t */
    SPEC_INT64,  /* int64_t, uint64_t */
    SPEC_FLOAT,  /* float */
    SPEC_DOUBLE, /* double */
    SPEC_PAIR,   /* two floats, one behind the other */
};

/* Where the default comes from. */
enum spec_default {
    SPEC_FIXED,    /* `number` or `text` of the table */
    SPEC_DERIVED,  /* from other fields: derive_defaults of spec.c */
    SPEC_REQUIRED, /* there is none */
    SPEC_NONE,     /* the field may be left out and stays so */
};

#define FOR_ANY 0
#define FOR_BLOCK_DIFFUSION (1u << OBJECTIVE_BLOCK_DIFFUSION)
#define FOR_FAST_DLLM_V2 (1u << OBJECTIVE_FAST_DLLM_V2)
#define FOR_DIFFUSION (FOR_BLOCK_DIFFUSION | FOR_FAST_DLLM_V2)

struct spec_field {
    const char *pointer;
    enum spec_type type;
    size_t offset; /* in struct job_spec */
    const char *about;
    enum spec_default fallback;
    double number;      /* default of numbers, booleans and enums (index) */
    double second;      /* of a pair's second number */
    const char *text;   /* default of strings */
    unsigned objective; /* FOR_...: elsewhere the field means nothing and is refused */
    const char *const *names;
    struct field_range range;
};

/* offset of a field that has one possible value, which nobody asks for. */
#define SPEC_NOT_STORED SIZE_MAX

#define SPEC_MAX_FIELDS 64
extern const struct spec_field spec_fields[];
extern const int spec_n_fields;

/* Longest strings accepted. */
#define SPEC_MAX_NAME 128
#define SPEC_MAX_TEXT 4096
size_t spec_text_limit(const struct spec_field *f);

/* Index in the table, or -1. */
int spec_field_find(const char *pointer);
/* The part of the pointer behind the last slash. */
const char *spec_field_key(const struct spec_field *f);
/* Index of the section that holds field i, or -1 at the top. */
int spec_field_section(int i);
bool spec_is_section(const struct spec_field *f);

#endif
