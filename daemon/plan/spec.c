/* Parsing of a job spec: walk the document along the table of fields, fill in what is absent, then
 * check the rules between fields. A rule is skipped where one of its fields is wrong in itself, so
 * that one mistake makes one problem.
 */
#include "daemon/plan/spec.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/spec_fields.h"

enum state { ABSENT, GIVEN, WRONG };

struct parser {
    struct job_spec *out;
    struct problems *problems;
    enum state state[SPEC_MAX_FIELDS];
};

/* ---- One value ---- */

static void *place(const struct parser *p, const struct spec_field *f)
{
    return (char *)p->out + f->offset;
}

/* A number that fits in itself may leave its range when it is rounded to fp32. */
static bool to_float(const struct parser *p, const struct spec_field *f, const char *pointer,
                     double value, float *out)
{
    float rounded = (float)value;
    if (!isfinite(rounded) || (f->range.open_least && rounded <= f->range.least) ||
        (f->range.open_most && rounded >= f->range.most)) {
        problems_add(p->problems, pointer, "is %.9g, which single precision cannot hold", value);
        return false;
    }
    *out = rounded;
    return true;
}

static bool parse_pair(const struct parser *p, const struct spec_field *f, const cJSON *item)
{
    float *out = place(p, f);
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2) {
        problems_add(p->problems, f->pointer, "must be an array of two numbers");
        return false;
    }
    bool good = true;
    int i = 0;
    for (const cJSON *number = item->child; number; number = number->next, i++) {
        char pointer[FIELDS_POINTER_BYTES];
        double value;
        field_pointer(pointer, f->pointer, i == 0 ? "0" : "1");
        good = field_number(number, pointer, f->range, &value, p->problems) &&
               to_float(p, f, pointer, value, &out[i]) && good;
    }
    return good;
}

static bool set_string(const struct parser *p, const struct spec_field *f, const char *text)
{
    char **to = place(p, f);
    *to = strdup(text);
    if (!*to)
        problems_add_err(p->problems, f->pointer, err_no_memory());
    return *to != NULL;
}

static bool parse_value(const struct parser *p, const struct spec_field *f, const cJSON *item)
{
    struct problems *problems = p->problems;
    size_t before = problems_count(problems);
    const char *text;
    double number;
    int64_t integer;
    int index;
    switch (f->type) {
    case SPEC_CONFIG:
        model_config_parse(item, f->pointer, place(p, f), problems);
        return problems_count(problems) == before;
    case SPEC_STRING:
        return field_string(item, f->pointer, spec_text_limit(f), &text, problems) &&
               set_string(p, f, text);
    case SPEC_NAME:
        return field_enum(item, f->pointer, f->names, &index, problems) &&
               set_string(p, f, f->names[index]);
    case SPEC_ENUM:
        if (!field_enum(item, f->pointer, f->names, &index, problems))
            return false;
        if (f->offset != SPEC_NOT_STORED)
            *(int *)place(p, f) = index;
        return true;
    case SPEC_SWITCH:
        if (!field_enum(item, f->pointer, f->names, &index, problems))
            return false;
        *(bool *)place(p, f) = index == 1;
        return true;
    case SPEC_BOOL:
        return field_bool(item, f->pointer, place(p, f), problems);
    case SPEC_INT:
    case SPEC_INT64:
        if (!field_integer(item, f->pointer, (int64_t)f->range.least, (int64_t)f->range.most,
                           &integer, problems))
            return false;
        if (f->type == SPEC_INT)
            *(int *)place(p, f) = (int)integer;
        else
            *(int64_t *)place(p, f) = integer;
        return true;
    case SPEC_FLOAT:
        return field_number(item, f->pointer, f->range, &number, problems) &&
               to_float(p, f, f->pointer, number, place(p, f));
    case SPEC_DOUBLE:
        return field_number(item, f->pointer, f->range, place(p, f), problems);
    case SPEC_PAIR:
        return parse_pair(p, f, item);
    case SPEC_OBJECT:
    case SPEC_PARALLEL:
        break;
    }
    return false;
}

/* ---- The document ---- */

/* "a, b and c": the fields of a section, or of the top (-1). */
static void list_keys(int section, char *out, size_t size)
{
    const char *between = "";
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < spec_n_fields && used < size; i++) {
        if (spec_field_section(i) != section)
            continue;
        used += (size_t)snprintf(out + used, size - used, "%s%s", between,
                                 spec_field_key(&spec_fields[i]));
        between = ", ";
    }
}

/* A section of the wrong type: what it should hold is not missing on top of that. */
static void mark_wrong(struct parser *p, int section)
{
    size_t length = strlen(spec_fields[section].pointer);
    p->state[section] = WRONG;
    for (int i = section + 1; i < spec_n_fields; i++)
        if (strncmp(spec_fields[i].pointer, spec_fields[section].pointer, length) == 0 &&
            spec_fields[i].pointer[length] == '/')
            p->state[i] = WRONG;
}

static void parse_object(struct parser *p, const cJSON *object, int section);

static void parse_section(struct parser *p, const cJSON *item, int section)
{
    const struct spec_field *f = &spec_fields[section];
    if (f->type == SPEC_PARALLEL && cJSON_IsString(item) &&
        strcmp(item->valuestring, "auto") == 0) {
        p->out->parallel.automatic = true;
    } else if (cJSON_IsObject(item)) {
        parse_object(p, item, section);
    } else {
        problems_add(p->problems, f->pointer, "is %s but must be an object%s",
                     field_type_name(item), f->type == SPEC_PARALLEL ? " or \"auto\"" : "");
        mark_wrong(p, section);
    }
}

static void parse_object(struct parser *p, const cJSON *object, int section)
{
    const char *path = section < 0 ? "" : spec_fields[section].pointer;
    for (const cJSON *item = object->child; item; item = item->next) {
        char pointer[FIELDS_POINTER_BYTES];
        field_pointer(pointer, path, item->string);
        int i = spec_field_find(pointer);
        if (i < 0) {
            char known[512];
            list_keys(section, known, sizeof known);
            problems_add(p->problems, pointer, "is not a known field; known here: %s", known);
        } else if (p->state[i] != ABSENT) {
            problems_add(p->problems, pointer, "is there more than once but must be there once");
        } else if (spec_is_section(&spec_fields[i])) {
            p->state[i] = GIVEN;
            parse_section(p, item, i);
        } else {
            p->state[i] = parse_value(p, &spec_fields[i], item) ? GIVEN : WRONG;
        }
    }
}

/* ---- Defaults ---- */

static void set_number(const struct parser *p, const struct spec_field *f, double number)
{
    void *to = place(p, f);
    switch (f->type) {
    case SPEC_ENUM:
    case SPEC_INT:
        *(int *)to = (int)number;
        break;
    case SPEC_INT64:
        *(int64_t *)to = (int64_t)number;
        break;
    case SPEC_BOOL:
        *(bool *)to = number != 0;
        break;
    case SPEC_DOUBLE:
        *(double *)to = number;
        break;
    case SPEC_PAIR:
        ((float *)to)[1] = (float)f->second;
        *(float *)to = (float)number;
        break;
    case SPEC_FLOAT:
        *(float *)to = (float)number;
        break;
    default:
        break;
    }
}

/* Before parsing, so that whatever is wrong later the struct holds possible values. */
static void fill_numbers(struct parser *p)
{
    for (int i = 0; i < spec_n_fields; i++) {
        const struct spec_field *f = &spec_fields[i];
        if (!spec_is_section(f) && !f->text && f->offset != SPEC_NOT_STORED)
            set_number(p, f, f->fallback == SPEC_FIXED ? f->number : f->range.least);
    }
}

static void fill_absent(struct parser *p)
{
    for (int i = 0; i < spec_n_fields; i++) {
        const struct spec_field *f = &spec_fields[i];
        if (p->state[i] != ABSENT)
            continue;
        if (f->text && !set_string(p, f, f->text))
            p->state[i] = WRONG;
        if (f->fallback != SPEC_REQUIRED)
            continue;
        if (spec_is_section(f)) {
            problems_add(p->problems, f->pointer, "is missing but must be an object");
            mark_wrong(p, i);
        } else {
            problems_add(p->problems, f->pointer, "is missing but must be %s",
                         f->type == SPEC_STRING ? "a string" : "a positive integer");
            p->state[i] = WRONG;
        }
    }
}

static enum state state_of(const struct parser *p, const char *pointer)
{
    return p->state[spec_field_find(pointer)];
}

static bool given(const struct parser *p, const char *pointer)
{
    return state_of(p, pointer) == GIVEN;
}

/* Given or filled in, and not wrong. */
static bool good(const struct parser *p, const char *pointer)
{
    return state_of(p, pointer) != WRONG;
}

static bool bytes_tokenizer(const struct job_spec *s)
{
    return s->data.tokenizer && strcmp(s->data.tokenizer, "bytes") == 0;
}

static void derive_defaults(struct parser *p)
{
    struct job_spec *s = p->out;
    struct objective_spec *o = &s->objective;
    if (o->type == OBJECTIVE_AUTOREGRESSIVE) {
        o->block_size = 1;
        o->mask_token_id = -1;
        o->views = 0;
    } else {
        if (state_of(p, "/objective/views") == ABSENT)
            o->views = o->type == OBJECTIVE_FAST_DLLM_V2 ? 2 : 1;
        if (state_of(p, "/objective/mask_token_id") == ABSENT && bytes_tokenizer(s))
            o->mask_token_id = SPEC_BYTES_MASK;
    }
    if (o->type != OBJECTIVE_BLOCK_DIFFUSION)
        o->loss_weighting = LOSS_UNIT;
    if (state_of(p, "/batch/sequences") == ABSENT) {
        const int64_t usual = 8;
        int64_t unit = s->parallel.data * s->batch.micro_sequences;
        s->batch.sequences = (usual + unit - 1) / unit * unit;
    }
    if (state_of(p, "/schedule/warmup_steps") == ABSENT)
        s->schedule.warmup_steps = s->steps / 10 < 100 ? s->steps / 10 : 100;
}

/* Weights and config.json have the vocabulary that the model came with; from here on it is as large
 * as the job says. */
static void grow_vocabulary(struct parser *p)
{
    struct job_spec *s = p->out;
    struct model_config *m = &s->model.config;
    if (!given(p, "/model/config"))
        return;
    if (state_of(p, "/model/vocab_size") == ABSENT)
        s->model.vocab_size = m->vocab;
    if (!good(p, "/model/vocab_size"))
        return;
    if (s->model.vocab_size < m->vocab) {
        problems_add(p->problems, "/model/vocab_size",
                     "is %" PRId64 " but must be at least config's vocab_size %" PRId64,
                     s->model.vocab_size, m->vocab);
        return;
    }
    m->added_vocab = s->model.vocab_size - m->vocab;
    m->vocab = s->model.vocab_size;
}

/* ---- Rules between fields ---- */

static void check_model(struct parser *p)
{
    const struct job_spec *s = p->out;
    if (!good(p, "/model") || !good(p, "/model/path") || !good(p, "/model/config"))
        return;
    if (!s->model.path && !given(p, "/model/config"))
        problems_add(p->problems, "/model",
                     "needs path, a directory with a config.json, or config itself");
    else if (!given(p, "/model/config"))
        problems_add(p->problems, "/model/config",
                     "is missing: it must be the config.json of /model/path");
    if (!s->model.path && given(p, "/model/config") && good(p, "/model/init") &&
        !s->model.random_init)
        problems_add(p->problems, "/model/init",
                     "must be \"random\" where no path says where weights are");
}

static void check_objective(struct parser *p)
{
    const struct job_spec *s = p->out;
    const struct objective_spec *o = &s->objective;
    if (!good(p, "/objective/type"))
        return;
    for (int i = 0; i < spec_n_fields; i++)
        if (p->state[i] == GIVEN && spec_fields[i].objective != FOR_ANY &&
            !(spec_fields[i].objective & 1u << o->type)) {
            problems_add(p->problems, spec_fields[i].pointer,
                         "means nothing for the objective %s: it must be left out",
                         objective_type_name(o->type));
            p->state[i] = WRONG;
        }
    if (o->type == OBJECTIVE_AUTOREGRESSIVE)
        return;
    if (o->type == OBJECTIVE_FAST_DLLM_V2 && good(p, "/objective/views") && o->views != 2)
        problems_add(p->problems, "/objective/views",
                     "is %d but fast_dllm_v2 always has 2 (complementary) views", o->views);
    if (good(p, "/objective/t_min") && good(p, "/objective/t_max") && o->t_min >= o->t_max)
        problems_add(p->problems, "/objective/t_min", "is %g but must be below t_max %g",
                     (double)o->t_min, (double)o->t_max);
}

static void check_vocabulary(struct parser *p)
{
    const struct job_spec *s = p->out;
    int64_t vocab = given(p, "/model/config") ? s->model.config.vocab : 0;
    bool bytes = good(p, "/data/tokenizer") && bytes_tokenizer(s);
    if (vocab > 0 && bytes && vocab < SPEC_BYTES_VOCAB)
        problems_add(p->problems, "/model/config/vocab_size",
                     "is %" PRId64 " but must be at least %d, the ids of the tokenizer bytes",
                     vocab, SPEC_BYTES_VOCAB);
    int32_t mask = s->objective.mask_token_id;
    if (!given(p, "/objective/mask_token_id") || mask < 0)
        return;
    if (vocab > 0 && mask >= vocab)
        problems_add(p->problems, "/objective/mask_token_id",
                     "is %" PRId32 " but must be below the model's vocab_size %" PRId64
                     "; /model/vocab_size can make it larger",
                     mask, vocab);
    else if (bytes && mask < SPEC_BYTES_MASK)
        problems_add(p->problems, "/objective/mask_token_id",
                     "is %" PRId32 ", which stands for text in the tokenizer bytes: it must be its "
                     "mask %d or an id above",
                     mask, SPEC_BYTES_MASK);
}

static void check_lengths(struct parser *p)
{
    const struct job_spec *s = p->out;
    int64_t length = s->data.sequence_length, block = s->objective.block_size;
    if (!good(p, "/data/sequence_length"))
        return;
    if (good(p, "/objective/type") && good(p, "/objective/block_size") && length % block != 0)
        problems_add(p->problems, "/data/sequence_length",
                     "is %" PRId64 " but must be a multiple of objective.block_size %" PRId64,
                     length, block);
    if (!s->parallel.automatic && good(p, "/parallel/mode") && good(p, "/parallel/degree") &&
        s->parallel.mode != MODE_NONE && length < 2 * (int64_t)s->parallel.degree)
        problems_add(p->problems, "/data/sequence_length",
                     "is %" PRId64 " but must be at least 2 x parallel.degree = %" PRId64, length,
                     2 * (int64_t)s->parallel.degree);
    if (good(p, "/batch/micro_sequences") && length * s->batch.micro_sequences > INT32_MAX)
        problems_add(p->problems, "/batch/micro_sequences",
                     "is %" PRId64 " but times data.sequence_length must stay below 2^31",
                     s->batch.micro_sequences);
}

static void check_parallel(struct parser *p)
{
    const struct job_spec *s = p->out;
    if (!s->parallel.automatic && good(p, "/parallel/mode") && good(p, "/parallel/degree") &&
        s->parallel.mode == MODE_NONE && s->parallel.degree != 1)
        problems_add(p->problems, "/parallel/degree", "is %d but must be 1 where mode is none",
                     s->parallel.degree);
    if (!good(p, "/parallel/data") || !good(p, "/batch/sequences"))
        return;
    int64_t sequences = s->batch.sequences, data = s->parallel.data;
    if (sequences % data != 0)
        problems_add(p->problems, "/batch/sequences",
                     "is %" PRId64 " but must be a multiple of parallel.data %" PRId64, sequences,
                     data);
    else if (good(p, "/batch/micro_sequences") && sequences / data % s->batch.micro_sequences != 0)
        problems_add(p->problems, "/batch/micro_sequences",
                     "is %" PRId64 " but must divide batch.sequences / parallel.data = %" PRId64,
                     s->batch.micro_sequences, sequences / data);
}

static void check_schedule(struct parser *p)
{
    const struct job_spec *s = p->out;
    if (good(p, "/schedule/min_lr") && good(p, "/optimizer/lr") &&
        s->schedule.min_lr > s->optimizer.lr)
        problems_add(p->problems, "/schedule/min_lr", "is %g but must not be above optimizer.lr %g",
                     (double)s->schedule.min_lr, (double)s->optimizer.lr);
    if (good(p, "/schedule/warmup_steps") && good(p, "/steps") &&
        s->schedule.warmup_steps > s->steps)
        problems_add(p->problems, "/schedule/warmup_steps",
                     "is %" PRId64 " but must not be above steps %" PRId64,
                     s->schedule.warmup_steps, s->steps);
}

void spec_parse(const cJSON *json, struct job_spec *out, struct problems *problems)
{
    struct parser p = {.out = out, .problems = problems};
    memset(out, 0, sizeof *out);
    fill_numbers(&p);
    if (!cJSON_IsObject(json)) {
        problems_add(problems, "", "is %s but must be an object, the job spec",
                     json ? field_type_name(json) : "nothing");
        return;
    }
    parse_object(&p, json, -1);
    fill_absent(&p);
    derive_defaults(&p);
    grow_vocabulary(&p);
    check_model(&p);
    check_objective(&p);
    check_vocabulary(&p);
    check_lengths(&p);
    check_parallel(&p);
    check_schedule(&p);
}

void spec_free(struct job_spec *s)
{
    for (int i = 0; i < spec_n_fields; i++)
        if (spec_fields[i].type == SPEC_STRING || spec_fields[i].type == SPEC_NAME) {
            char **text = (char **)((char *)s + spec_fields[i].offset);
            free(*text);
            *text = NULL;
        }
}

size_t spec_dtype_bytes(const struct job_spec *s)
{
    bool automatic = s->precision == SPEC_PRECISION_AUTO;
    bool bf16 = automatic ? s->device == SPEC_DEVICE_CUDA : s->precision == SPEC_PRECISION_BF16;
    return bf16 ? 2 : 4;
}

int spec_world_size(const struct job_spec *s)
{
    return s->parallel.degree * s->parallel.data;
}
