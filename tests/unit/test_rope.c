/* Rotations: how config.json says them, and the frequencies that follow, against the definitions
 * written out pair by pair and against values of the transformers library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "daemon/plan/rope.h"

#define MAX_PAIRS 128

/* Single quotes stand for double ones. */
static cJSON *parse(const char *text)
{
    char buffer[2048];
    assert_true(strlen(text) < sizeof buffer);
    strcpy(buffer, text);
    for (char *p = buffer; *p; p++)
        if (*p == '\'')
            *p = '"';
    cJSON *json = cJSON_Parse(buffer);
    if (!json)
        fail_msg("the test's own JSON is broken: %s", buffer);
    return json;
}

static struct rope read_good(const char *text, int64_t max_positions)
{
    cJSON *json = parse(text);
    struct problems problems = {0};
    struct rope rope;
    struct config_reader reader = {json, "", &problems};
    rope_parse(&reader, max_positions, &rope);
    if (problems_count(&problems))
        fail_msg("%s: %s %s", text, problems.items[0].path, problems.items[0].message);
    cJSON_Delete(json);
    return rope;
}

/* ---- Frequencies ---- */

struct known {
    const char *config;
    int64_t max_positions;
    double attention_factor; /* 0: not of a type that has one */
    struct {
        int pair;
        double frequency;
    } pairs[8];
};

/* Heads of 128. As transformers 5.17 computes them, in single precision. */
static const struct known known[] = {
    {"{}",
     0,
     0,
     {{0, 1.0}, {1, 0.865964353}, {16, 0.100000001}, {32, 0.00999999978}, {63, 0.000115478193}}},
    {"{'rope_theta':10000,'rope_scaling':{'type':'linear','factor':2.5}}",
     4096,
     0,
     {{0, 0.400000006}, {1, 0.346385747}, {32, 0.00399999972}, {63, 4.61912787e-05}}},
    /* Llama 3.1 */
    {"{'rope_theta':500000.0,'rope_scaling':{'factor':8.0,'low_freq_factor':1.0,"
     "'high_freq_factor':4.0,'original_max_position_embeddings':8192,'rope_type':'llama3'}}",
     131072,
     0,
     {{0, 1.0},
      {1, 0.814617217},
      {21, 0.0134904198},
      {32, 0.000524846022},
      {42, 2.2748929e-05},
      {48, 6.64786967e-06},
      {63, 3.06892588e-07}}},
    /* Qwen 2.5 as its card says to stretch it */
    {"{'rope_theta':1000000.0,'rope_scaling':{'factor':4.0,"
     "'original_max_position_embeddings':32768,'type':'yarn'}}",
     32768,
     1.138629436111989,
     {{0, 1.0},
      {1, 0.805842221},
      {21, 0.0107460786},
      {32, 0.000602941145},
      {42, 2.88695483e-05},
      {48, 7.90569356e-06},
      {63, 3.10234441e-07}}},
    {"{'rope_parameters':{'rope_type':'yarn','rope_theta':1e6,'factor':null,"
     "'original_max_position_embeddings':32768}}",
     131072,
     1.138629436111989,
     {{1, 0.805842221}, {32, 0.000602941145}, {63, 3.10234441e-07}}},
    /* the original length is the present one where it is not said */
    {"{'rope_parameters':{'rope_type':'yarn','rope_theta':1e6,'factor':4.0}}",
     131072,
     1.138629436111989,
     {{1, 0.805842221}, {32, 0.000911764742}, {42, 5.43426795e-05}, {63, 3.10234441e-07}}},
    {"{'original_max_position_embeddings':32768,"
     "'rope_parameters':{'rope_type':'yarn','rope_theta':1e6,'factor':4.0}}",
     40960,
     1.138629436111989,
     {{32, 0.000602941145}, {42, 2.88695483e-05}}},
    {"{'rope_parameters':{'rope_type':'yarn','rope_theta':1e6,'factor':4.0,"
     "'original_max_position_embeddings':32768,'attention_factor':0.7,'mscale':2.0}}",
     0,
     0.7,
     {{32, 0.000602941145}}},
    {"{'rope_parameters':{'rope_type':'yarn','rope_theta':1e4,'factor':40.0,"
     "'original_max_position_embeddings':4096,'mscale':1.0,'mscale_all_dim':0.707,"
     "'beta_fast':32,'beta_slow':1}}",
     0,
     1.0857263992561355,
     {{21, 0.0468706228}, {32, 0.00550000044}, {42, 0.000414990413}, {63, 2.88695469e-06}}},
    {"{'rope_parameters':{'rope_type':'yarn','rope_theta':1e4,'factor':40.0,"
     "'original_max_position_embeddings':4096,'mscale':0.707}}",
     0,
     1.3688879454113936,
     {{32, 0.00550000044}}},
    {"{'rope_parameters':{'rope_type':'yarn','rope_theta':1e4,'factor':40.0,"
     "'original_max_position_embeddings':4096,'mscale':0.707,'mscale_all_dim':0.707}}",
     0,
     1.0,
     {{32, 0.00550000044}}},
    {"{'rope_parameters':{'rope_type':'yarn','rope_theta':150000.0,'factor':32.0,"
     "'original_max_position_embeddings':4096,'truncate':false}}",
     0,
     1.3465735902799727,
     {{0, 1.0},
      {1, 0.830086946},
      {16, 0.0508132726},
      {21, 0.0150072975},
      {32, 0.000456483918},
      {42, 1.25325696e-05},
      {63, 2.50977735e-07}}},
};

static void same_as_the_library(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct rope rope = read_good(known[i].config, known[i].max_positions);
        float frequencies[64];
        rope_frequencies(&rope, 128, frequencies);
        for (int k = 0; k < 8 && known[i].pairs[k].frequency != 0; k++) {
            double expected = known[i].pairs[k].frequency;
            double got = frequencies[known[i].pairs[k].pair];
            if (!(fabs(got - expected) <= 1e-6 * expected))
                fail_msg("%s: pair %d turns by %.9g, not %.9g", known[i].config,
                         known[i].pairs[k].pair, got, expected);
        }
        double factor = known[i].attention_factor;
        double scale = factor != 0 ? factor * factor : 1;
        assert_true(fabs(rope_score_scale(&rope) - scale) <= 1e-12 * scale);
    }
}

/* The definitions, each written as its paper has it: by wavelength (Llama 3), by the number of
 * turns r of a dimension and a ramp between two dimensions (YaRN). */
static double defined(const struct rope *rope, int64_t d, int64_t pair)
{
    double base = 1 / exp(log(rope->theta) * (double)(2 * pair) / (double)d);
    if (rope->type == ROPE_LINEAR)
        return base / rope->factor;
    if (rope->type == ROPE_LLAMA3) {
        double wavelength = 2 * M_PI / base;
        double longest = rope->original_positions / rope->low_freq_factor;
        double shortest = rope->original_positions / rope->high_freq_factor;
        if (wavelength > longest)
            return base / rope->factor;
        if (wavelength < shortest)
            return base;
        double smooth = (rope->original_positions / wavelength - rope->low_freq_factor) /
                        (rope->high_freq_factor - rope->low_freq_factor);
        return (1 - smooth) * (base / rope->factor) + smooth * base;
    }
    if (rope->type == ROPE_YARN) {
        double turns[2] = {rope->beta_fast, rope->beta_slow}, at[2];
        for (int i = 0; i < 2; i++) /* r(at) = turns, solved for at */
            at[i] = (double)d / 2 * log(rope->original_positions / (2 * M_PI * turns[i])) /
                    log(rope->theta);
        double low = rope->truncate ? floor(at[0]) : at[0];
        double high = rope->truncate ? ceil(at[1]) : at[1];
        low = low < 0 ? 0 : low;
        high = high > (double)(d - 1) ? (double)(d - 1) : high;
        double gamma = 1 - ((double)pair - low) / (high - low);
        gamma = gamma < 0 ? 0 : gamma > 1 ? 1 : gamma;
        return (1 - gamma) * (base / rope->factor) + gamma * base;
    }
    return base;
}

static void same_as_the_definitions(void **state)
{
    (void)state;
    static const struct rope ropes[] = {
        {.theta = 1e6},
        {.type = ROPE_LINEAR, .theta = 1e4, .factor = 3},
        {.type = ROPE_LLAMA3,
         .theta = 5e5,
         .factor = 32,
         .low_freq_factor = 1,
         .high_freq_factor = 4,
         .original_positions = 8192},
        {.type = ROPE_LLAMA3,
         .theta = 100,
         .factor = 2,
         .low_freq_factor = 0.5,
         .high_freq_factor = 7,
         .original_positions = 96},
        {.type = ROPE_YARN,
         .theta = 1e4,
         .factor = 16,
         .beta_slow = 1,
         .beta_fast = 32,
         .truncate = true,
         .original_positions = 2048},
        {.type = ROPE_YARN,
         .theta = 30,
         .factor = 4,
         .beta_slow = 0.7,
         .beta_fast = 12,
         .original_positions = 128},
    };
    static const int64_t widths[] = {2, 16, 80, 128, 256};
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++)
        for (size_t k = 0; k < sizeof widths / sizeof *widths; k++) {
            float frequencies[MAX_PAIRS];
            rope_frequencies(&ropes[i], widths[k], frequencies);
            for (int64_t j = 0; j < widths[k] / 2; j++) {
                double expected = defined(&ropes[i], widths[k], j);
                if (!(fabs(frequencies[j] - expected) <= 1e-6 * expected))
                    fail_msg("rotation %zu, head of %d, pair %d: %.9g, not %.9g", i, (int)widths[k],
                             (int)j, (double)frequencies[j], expected);
            }
        }
}

/* ---- Reading ---- */

static void spellings(void **state)
{
    (void)state;
    struct rope r = read_good("{}", 0);
    assert_true(r.type == ROPE_DEFAULT && r.theta == 10000);
    r = read_good("{'rope_theta':7,'rope_scaling':null,'rope_parameters':null}", 0);
    assert_true(r.type == ROPE_DEFAULT && r.theta == 7);
    r = read_good("{'rope_theta':7,'rope_parameters':{'rope_type':'default','rope_theta':7}}", 0);
    assert_true(r.type == ROPE_DEFAULT && r.theta == 7);
    r = read_good("{'rope_parameters':{'rope_theta':9,'factor':null}}", 0);
    assert_true(r.type == ROPE_DEFAULT && r.theta == 9);
    r = read_good("{'rope_theta':7,'rope_scaling':{'type':'linear','rope_type':'linear',"
                  "'factor':4.0}}",
                  0);
    assert_true(r.type == ROPE_LINEAR && r.theta == 7 && r.factor == 4);
    /* both, when they say the same */
    r = read_good("{'rope_theta':7,'rope_scaling':{'type':'linear','factor':4},"
                  "'rope_parameters':{'rope_type':'linear','rope_theta':7,'factor':4}}",
                  0);
    assert_true(r.type == ROPE_LINEAR && r.factor == 4);
    /* by layer type, when all are the same */
    r = read_good("{'rope_parameters':{'full_attention':{'rope_type':'linear','rope_theta':5,"
                  "'factor':2},'sliding_attention':{'rope_type':'linear','rope_theta':5,"
                  "'factor':2},'chunked_attention':null}}",
                  0);
    assert_true(r.type == ROPE_LINEAR && r.theta == 5 && r.factor == 2);
    /* null and 0 mean what is assumed otherwise */
    r = read_good("{'rope_scaling':{'rope_type':'yarn','factor':4,'beta_fast':null,'beta_slow':0,"
                  "'attention_factor':null,'mscale':0,'mscale_all_dim':1}}",
                  64);
    assert_true(r.beta_fast == 32 && r.beta_slow == 1 && r.truncate);
    assert_true(r.original_positions == 64 && r.factor == 4);
    assert_true(fabs(r.attention_factor - (0.1 * log(4) + 1)) < 1e-12);
    r = read_good("{'rope_scaling':{'rope_type':'yarn','factor':1}}", 64);
    assert_true(r.attention_factor == 1);
}

static void refused(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        int64_t max_positions;
        const char *path, *says;
    } cases[] = {
        {"{'rope_theta':-1}", 0, "/rope_theta", "above 0"},
        {"{'rope_scaling':'yarn'}", 0, "/rope_scaling", "an object or null"},
        {"{'rope_scaling':{'type':'dynamic','factor':2}}", 0, "/rope_scaling/type",
         "is \"dynamic\" but must be \"default\", \"linear\", \"llama3\" or \"yarn\""},
        {"{'rope_scaling':{'rope_type':'longrope'}}", 0, "/rope_scaling/rope_type", "longrope"},
        {"{'rope_scaling':{'rope_type':3}}", 0, "/rope_scaling/rope_type", "a number"},
        {"{'rope_scaling':{'type':'linear','rope_type':'yarn','factor':2}}", 0,
         "/rope_scaling/rope_type", "must agree"},
        {"{'rope_scaling':{'type':'default','factor':4}}", 0, "/rope_scaling/factor",
         "means nothing for the rotation \"default\""},
        {"{'rope_scaling':{'type':'linear','factor':4,'mscale':1}}", 0, "/rope_scaling/mscale",
         "means nothing for the rotation \"linear\""},
        {"{'rope_scaling':{'type':'linear','factor':4,'mrope_section':[1]}}", 0,
         "/rope_scaling/mrope_section", "means nothing"},
        {"{'rope_scaling':{'type':'linear'}}", 0, "/rope_scaling/factor", "missing"},
        {"{'rope_scaling':{'type':'linear','factor':0}}", 0, "/rope_scaling/factor", "above 0"},
        {"{'rope_scaling':{'type':'linear','factor':'4'}}", 0, "/rope_scaling/factor", "a string"},
        {"{'rope_parameters':{'partial_rotary_factor':0.5}}", 0,
         "/rope_parameters/partial_rotary_factor", "only 1"},
        {"{'rope_theta':4,'rope_parameters':{'rope_theta':5}}", 0, "/rope_parameters", "agree"},
        {"{'rope_scaling':{'rope_type':'linear','factor':2},"
         "'rope_parameters':{'rope_type':'linear','factor':3}}",
         0, "/rope_parameters", "something else than rope_scaling"},
        {"{'rope_scaling':{'rope_type':'llama3','factor':8,'low_freq_factor':1,"
         "'original_max_position_embeddings':8192}}",
         0, "/rope_scaling/high_freq_factor", "missing"},
        {"{'rope_scaling':{'rope_type':'llama3','factor':8,'low_freq_factor':4,"
         "'high_freq_factor':4}}",
         8192, "/rope_scaling", "above low_freq_factor"},
        {"{'rope_scaling':{'rope_type':'llama3','factor':8,'low_freq_factor':1,"
         "'high_freq_factor':4}}",
         0, "/rope_scaling/original_max_position_embeddings", "missing"},
        {"{'rope_scaling':{'rope_type':'yarn'}}", 64, "/rope_scaling/factor", "missing"},
        {"{'rope_scaling':{'rope_type':'yarn','factor':4}}", 0,
         "/rope_scaling/original_max_position_embeddings", "missing"},
        {"{'rope_scaling':{'rope_type':'yarn','factor':4,'beta_fast':1,'beta_slow':2}}", 64,
         "/rope_scaling/beta_fast", "must not be below"},
        {"{'rope_scaling':{'rope_type':'yarn','factor':4,'truncate':'no'}}", 64,
         "/rope_scaling/truncate", "true or false"},
        {"{'rope_scaling':{'rope_type':'yarn','factor':4,'attention_factor':-1}}", 64,
         "/rope_scaling/attention_factor", "above 0"},
        {"{'rope_scaling':{'rope_type':'yarn','factor':4,'rope_theta':1}}", 64, "/rope_scaling",
         "above 1"},
        {"{'original_max_position_embeddings':32,'rope_scaling':{'rope_type':'yarn','factor':4,"
         "'original_max_position_embeddings':64}}",
         64, "/rope_scaling", "original_max_position_embeddings of 64"},
        {"{'rope_parameters':{'full_attention':{'rope_theta':1},"
         "'sliding_attention':{'rope_theta':2}}}",
         0, "/rope_parameters/sliding_attention", "differs from full_attention"},
        {"{'rope_parameters':{'full_attention':{'rope_theta':1},'rope_theta':2}}", 0,
         "/rope_parameters/rope_theta", "by layer type"},
        {"{'rope_parameters':{'full_attention':7}}", 0, "/rope_parameters/full_attention",
         "an object"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cJSON *json = parse(cases[i].config);
        struct problems problems = {0};
        struct rope rope;
        struct config_reader reader = {json, "", &problems};
        rope_parse(&reader, cases[i].max_positions, &rope);
        if (problems.count != 1 || strcmp(problems.items[0].path, cases[i].path) != 0 ||
            !strstr(problems.items[0].message, cases[i].says)) {
            for (size_t k = 0; k < problems.count; k++)
                print_error("%s %s\n", problems.items[k].path, problems.items[k].message);
            fail_msg("%s: expected only %s \"%s\"", cases[i].config, cases[i].path, cases[i].says);
        }
        problems_free(&problems);
        cJSON_Delete(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_the_library),
        cmocka_unit_test(same_as_the_definitions),
        cmocka_unit_test(spellings),
        cmocka_unit_test(refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
