/* Names, defaults and arithmetic are those of the transformers library (docs/mathematics.md,
 * "RoPE") so that a published config.json means here what it means there. A member that the named
 * type does not have is refused: it was meant for another one.
 */
#include "daemon/plan/rope.h"

#include <math.h>
#include <string.h>

#define DEFAULT_THETA 10000.0
#define DEFAULT_BETA_FAST 32.0
#define DEFAULT_BETA_SLOW 1.0
/* A ramp of no width would divide by zero. */
#define LEAST_RAMP 0.001

static const char *const type_names[] = {[ROPE_DEFAULT] = "default",
                                         [ROPE_LINEAR] = "linear",
                                         [ROPE_LLAMA3] = "llama3",
                                         [ROPE_YARN] = "yarn",
                                         NULL};

#define FOR(type) (1u << (type))
#define FOR_ALL (FOR(ROPE_DEFAULT) | FOR(ROPE_LINEAR) | FOR(ROPE_LLAMA3) | FOR(ROPE_YARN))

static const struct {
    const char *name;
    unsigned types;
} members[] = {
    {"rope_type", FOR_ALL},
    {"type", FOR_ALL},
    {"rope_theta", FOR_ALL},
    {"partial_rotary_factor", FOR_ALL},
    {"factor", FOR(ROPE_LINEAR) | FOR(ROPE_LLAMA3) | FOR(ROPE_YARN)},
    {"original_max_position_embeddings", FOR(ROPE_LLAMA3) | FOR(ROPE_YARN)},
    {"low_freq_factor", FOR(ROPE_LLAMA3)},
    {"high_freq_factor", FOR(ROPE_LLAMA3)},
    {"beta_slow", FOR(ROPE_YARN)},
    {"beta_fast", FOR(ROPE_YARN)},
    {"truncate", FOR(ROPE_YARN)},
    {"attention_factor", FOR(ROPE_YARN)},
    {"mscale", FOR(ROPE_YARN)},
    {"mscale_all_dim", FOR(ROPE_YARN)},
};
#define N_MEMBERS (sizeof members / sizeof *members)

static const struct field_range positive = {.least = 0, .most = INFINITY, .open_least = true};
static const struct field_range not_negative = {.least = 0, .most = INFINITY};

/* What stands outside of the object that describes the rotation; 0: it does not. */
struct surroundings {
    double theta, original_positions, max_positions;
};

/* ---- Reading ---- */

/* Both spellings of the type; false: a problem, and what the rest means is not known. */
static bool read_type(const struct config_reader *r, enum rope_type *out)
{
    static const char *const keys[] = {"type", "rope_type"};
    char pointer[FIELDS_POINTER_BYTES];
    int found[2] = {-1, -1};
    for (int i = 0; i < 2; i++) {
        const cJSON *item = config_member(r, keys[i], pointer);
        if (item && !field_enum(item, pointer, type_names, &found[i], r->problems))
            return false;
    }
    if (found[0] >= 0 && found[1] >= 0 && found[0] != found[1]) {
        problems_add(r->problems, pointer, "is \"%s\" where type is \"%s\": they must agree",
                     type_names[found[1]], type_names[found[0]]);
        return false;
    }
    int type = found[1] >= 0 ? found[1] : found[0] >= 0 ? found[0] : ROPE_DEFAULT;
    *out = (enum rope_type)type;
    return true;
}

static void refuse_other_members(const struct config_reader *r, enum rope_type type)
{
    for (const cJSON *item = r->json->child; item; item = item->next) {
        bool known = cJSON_IsNull(item);
        for (size_t i = 0; i < N_MEMBERS; i++)
            known = known ||
                    (members[i].types & FOR(type) && strcmp(item->string, members[i].name) == 0);
        if (known)
            continue;
        char pointer[FIELDS_POINTER_BYTES];
        field_pointer(pointer, r->path, item->string);
        problems_add(r->problems, pointer, "means nothing for the rotation \"%s\"",
                     type_names[type]);
    }
}

static double read_theta(const struct config_reader *r, const struct surroundings *s)
{
    double theta = config_number(r, "rope_theta", positive, s->theta);
    if (s->theta != 0 && theta != s->theta)
        problems_add(r->problems, r->path,
                     "has a rope_theta of %g where the config's own rope_theta is %g: they must "
                     "agree",
                     theta, s->theta);
    return theta != 0 ? theta : DEFAULT_THETA;
}

static double read_original_positions(const struct config_reader *r, const struct surroundings *s)
{
    static const char key[] = "original_max_position_embeddings";
    double own = config_number(r, key, positive, s->original_positions);
    if (s->original_positions != 0 && own != s->original_positions)
        problems_add(r->problems, r->path,
                     "has an %s of %g where the config's own is %g: they must agree", key, own,
                     s->original_positions);
    if (own == 0)
        own = s->max_positions;
    if (own == 0)
        config_number_needed(r, key, positive);
    return own;
}

static void read_llama3(const struct config_reader *r, const struct surroundings *s,
                        struct rope *out)
{
    size_t before = problems_count(r->problems);
    out->factor = config_number_needed(r, "factor", positive);
    out->low_freq_factor = config_number_needed(r, "low_freq_factor", positive);
    out->high_freq_factor = config_number_needed(r, "high_freq_factor", positive);
    out->original_positions = read_original_positions(r, s);
    if (problems_count(r->problems) == before && out->high_freq_factor <= out->low_freq_factor)
        problems_add(r->problems, r->path,
                     "has a high_freq_factor of %g but it must be above low_freq_factor %g",
                     out->high_freq_factor, out->low_freq_factor);
}

/* The paper's recommendation for a text `factor` times as long; mscale 1 but for DeepSeek's models.
 */
static double sharpness(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double read_attention_factor(const struct config_reader *r, double factor)
{
    double given = config_number(r, "attention_factor", positive, 0);
    double mscale = config_number(r, "mscale", not_negative, 0);
    double all = config_number(r, "mscale_all_dim", not_negative, 0);
    if (given != 0)
        return given;
    return mscale != 0 && all != 0 ? sharpness(factor, mscale) / sharpness(factor, all)
                                   : sharpness(factor, 1);
}

static void read_yarn(const struct config_reader *r, const struct surroundings *s, struct rope *out)
{
    size_t before = problems_count(r->problems);
    char pointer[FIELDS_POINTER_BYTES];
    out->original_positions = read_original_positions(r, s);
    bool implied = cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(r->json, "factor")) &&
                   s->max_positions != 0 && out->original_positions != 0;
    out->factor = implied ? s->max_positions / out->original_positions
                          : config_number_needed(r, "factor", positive);
    out->beta_slow = config_number(r, "beta_slow", not_negative, 0);
    out->beta_fast = config_number(r, "beta_fast", not_negative, 0);
    if (out->beta_slow == 0)
        out->beta_slow = DEFAULT_BETA_SLOW;
    if (out->beta_fast == 0)
        out->beta_fast = DEFAULT_BETA_FAST;
    out->truncate = config_bool(r, "truncate", true);
    out->attention_factor = read_attention_factor(r, out->factor);
    if (problems_count(r->problems) > before)
        return;
    if (out->beta_fast < out->beta_slow) {
        field_pointer(pointer, r->path, "beta_fast");
        problems_add(r->problems, pointer, "is %g but must not be below beta_slow %g",
                     out->beta_fast, out->beta_slow);
    }
    if (out->theta <= 1)
        problems_add(r->problems, r->path, "needs a rope_theta above 1, not %g", out->theta);
}

static void read_object(const struct config_reader *r, const struct surroundings *s,
                        struct rope *out)
{
    *out = (struct rope){0};
    if (!read_type(r, &out->type))
        return;
    config_refuse_number_but(r, "partial_rotary_factor", 1.0);
    refuse_other_members(r, out->type);
    out->theta = read_theta(r, s);
    if (out->type == ROPE_LINEAR)
        out->factor = config_number_needed(r, "factor", positive);
    else if (out->type == ROPE_LLAMA3)
        read_llama3(r, s, out);
    else if (out->type == ROPE_YARN)
        read_yarn(r, s, out);
}

static bool same(const struct rope *a, const struct rope *b)
{
    return a->type == b->type && a->theta == b->theta && a->factor == b->factor &&
           a->original_positions == b->original_positions &&
           a->low_freq_factor == b->low_freq_factor && a->high_freq_factor == b->high_freq_factor &&
           a->beta_slow == b->beta_slow && a->beta_fast == b->beta_fast &&
           a->truncate == b->truncate && a->attention_factor == b->attention_factor;
}

static bool names_layer_type(const char *key)
{
    return strcmp(key, "full_attention") == 0 || strcmp(key, "sliding_attention") == 0;
}

/* One rotation for each type of layer: they must be the same one. */
static void read_nested(const struct config_reader *r, const struct surroundings *s,
                        struct rope *out)
{
    const cJSON *first = NULL;
    for (const cJSON *item = r->json->child; item; item = item->next) {
        char pointer[FIELDS_POINTER_BYTES];
        field_pointer(pointer, r->path, item->string);
        if (cJSON_IsNull(item))
            continue;
        if (!names_layer_type(item->string) || !cJSON_IsObject(item)) {
            problems_add(r->problems, pointer,
                         "stands beside rotations by layer type, of which each must be an object "
                         "at full_attention or sliding_attention");
            continue;
        }
        struct rope own;
        size_t before = problems_count(r->problems);
        struct config_reader inner = {item, pointer, r->problems};
        read_object(&inner, s, &own);
        if (first && problems_count(r->problems) == before && !same(&own, out))
            problems_add(r->problems, pointer,
                         "differs from %s: one rotation for all layers is supported",
                         first->string);
        if (!first)
            *out = own;
        first = item;
    }
}

static void read_either(const struct config_reader *r, const struct surroundings *s,
                        struct rope *out)
{
    for (const cJSON *item = r->json->child; item; item = item->next)
        if (names_layer_type(item->string)) {
            read_nested(r, s, out);
            return;
        }
    read_object(r, s, out);
}

void rope_parse(const struct config_reader *config, int64_t max_positions, struct rope *out)
{
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    struct surroundings s = {
        .theta = config_number(config, "rope_theta", positive, 0),
        .original_positions =
            config_number(config, "original_max_position_embeddings", positive, 0),
        .max_positions = (double)max_positions,
    };
    const cJSON *found = NULL;
    *out = (struct rope){.theta = s.theta != 0 ? s.theta : DEFAULT_THETA};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char pointer[FIELDS_POINTER_BYTES];
        const cJSON *item = config_member(config, keys[i], pointer);
        if (!item)
            continue;
        if (!cJSON_IsObject(item)) {
            problems_add(config->problems, pointer, "is %s but must be an object or null",
                         field_type_name(item));
            continue;
        }
        struct config_reader r = {item, pointer, config->problems};
        struct rope own = {0};
        size_t before = problems_count(config->problems);
        read_either(&r, &s, &own);
        if (found && problems_count(config->problems) == before && !same(&own, out))
            problems_add(config->problems, pointer,
                         "says something else than %s: one of them must be left out",
                         found->string);
        *out = own;
        found = item;
    }
}

/* ---- Frequencies ---- */

static double llama3(const struct rope *rope, double frequency)
{
    double turns = rope->original_positions * frequency / (2 * M_PI);
    if (turns < rope->low_freq_factor)
        return frequency / rope->factor;
    if (turns > rope->high_freq_factor)
        return frequency;
    double fast =
        (turns - rope->low_freq_factor) / (rope->high_freq_factor - rope->low_freq_factor);
    return (1 - fast) * frequency / rope->factor + fast * frequency;
}

/* The pair, counted in real numbers, that turns `turns` times over the original positions. */
static double pair_that_turns(const struct rope *rope, double head_dim, double turns)
{
    return head_dim * log(rope->original_positions / (turns * 2 * M_PI)) / (2 * log(rope->theta));
}

static double yarn(const struct rope *rope, double head_dim, double pair, double frequency)
{
    double begin = pair_that_turns(rope, head_dim, rope->beta_fast);
    double end = pair_that_turns(rope, head_dim, rope->beta_slow);
    if (rope->truncate) {
        begin = floor(begin);
        end = ceil(end);
    }
    begin = fmax(begin, 0);
    end = fmin(end, head_dim - 1);
    if (begin == end)
        end += LEAST_RAMP;
    double slow = fmin(fmax((pair - begin) / (end - begin), 0), 1);
    return slow * frequency / rope->factor + (1 - slow) * frequency;
}

void rope_frequencies(const struct rope *rope, int64_t head_dim, float *inv_freq)
{
    for (int64_t j = 0; j < head_dim / 2; j++) {
        double f = pow(rope->theta, -2.0 * (double)j / (double)head_dim);
        if (rope->type == ROPE_LINEAR)
            f /= rope->factor;
        else if (rope->type == ROPE_LLAMA3)
            f = llama3(rope, f);
        else if (rope->type == ROPE_YARN)
            f = yarn(rope, (double)head_dim, (double)j, f);
        inv_freq[j] = (float)f;
    }
}

double rope_score_scale(const struct rope *rope)
{
    return rope->type == ROPE_YARN ? rope->attention_factor * rope->attention_factor : 1.0;
}
