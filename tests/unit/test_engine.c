/* Training is the same whoever does it: one seed, twenty steps, every mode and degree and replica
 * count; and one step cut into micro-batches in every way. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/philox.h"
#include "daemon/worker/engine.h"
#include "tests/support/ranks.h"

#define STEPS 20
#define SEQUENCES 4
#define LENGTH 96
#define BLOCK 8
#define VOCAB 61
#define MASK 60
#define SEED 17
#define TIMEOUT_S 120.0
#define MAX_RANKS 4

struct trial {
    enum objective_type type;
    int views;
    enum parallel_mode mode;
    int degree, data;
    int micro; /* sequences of a micro-batch */
    enum recompute recompute;
    int steps;
};

struct result {
    double losses[STEPS];
    double norms[STEPS];
};

static struct model_config model(void)
{
    return (struct model_config){
        .family = MODEL_QWEN3,
        .hidden = 32,
        .intermediate = 48,
        .layers = 3,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 8,
        .vocab = VOCAB,
        .rms_norm_eps = 1e-6f,
        .rope = {.theta = 10000},
        .initializer_range = 0.08f,
        .tie_embeddings = true,
        .head_norm = true,
        .window = {0, 20, 0},
    };
}

static struct objective_spec objective(const struct trial *t)
{
    bool autoregressive = t->type == OBJECTIVE_AUTOREGRESSIVE;
    return (struct objective_spec){
        .type = t->type,
        .block_size = autoregressive ? 1 : BLOCK,
        .mask_token_id = autoregressive ? -1 : MASK,
        .views = t->views,
        .loss_weighting = t->type == OBJECTIVE_BLOCK_DIFFUSION ? LOSS_INVERSE_T : LOSS_UNIT,
        .t_min = 0.001f,
        .t_max = 1.0f,
        .antithetic = true,
    };
}

/* Sample `sample`: a noisy periodic text of two documents and some padding. How much of it is
 * supervised differs widely: 1 in 1, 1 in 5, 1 in 25, nothing at all. */
static void fill(struct batch *b, int64_t row, uint64_t sample)
{
    static const int64_t every[] = {1, 5, 25, LENGTH + 1};
    int64_t cut = 30 + (int64_t)(sample % 7) * 3, end = LENGTH - (int64_t)(sample % 3) * 5;
    batch_add_document(b, row, row + cut);
    batch_add_document(b, row + cut, row + end);
    for (int64_t i = 0; i < LENGTH; i++) {
        uint64_t noise = philox_bits(SEED, PHILOX_ORDER, sample, 0, (uint64_t)i);
        bool noisy = noise % 10 == 0;
        b->ids[row + i] = (int32_t)(noisy ? noise / 10 % MASK : (uint64_t)(i * 7 + i / 5) % MASK);
        b->supervised[row + i] = i < end && (i + 1) % every[sample % 4] == 0;
    }
}

static struct err *one_step(struct engine *engine, const struct trial *t, int replica,
                            struct batch *b, int step, struct engine_sums *sums)
{
    struct objective_spec o = objective(t);
    int per_replica = SEQUENCES / t->data;
    memset(sums, 0, sizeof *sums);
    engine_zero_gradients(engine);
    for (int first = 0; first < per_replica; first += t->micro) {
        batch_clear(b);
        for (int i = 0; i < t->micro; i++) {
            uint64_t sample = (uint64_t)(step * SEQUENCES + replica * per_replica + first + i);
            fill(b, i * LENGTH, sample);
            batch_corrupt(b, &o, SEED, CORRUPTION_TRAINING, sample, i * LENGTH, LENGTH);
        }
        TRY(engine_accumulate(engine, b, &o, true, sums));
    }
    return engine_finish_sums(engine, sums, NULL, 0);
}

static struct err *train(struct engine *engine, const struct trial *t, int replica, struct batch *b,
                         struct result *out)
{
    for (int step = 0; step < t->steps; step++) {
        struct engine_sums sums;
        struct adamw options = {
            .lr = 3e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
        options.step = step + 1;
        TRY(one_step(engine, t, replica, b, step, &sums));
        TRY(engine_update(engine, sums.denominator, &options, 1.0f, &out->norms[step]));
        out->losses[step] = sums.loss / sums.denominator;
    }
    return NULL;
}

static struct err *connect(const struct meeting *meeting, const char *name, int rank, int world,
                           struct comm **out)
{
    return world == 1 ? comm_create_self(out)
                      : comm_create_gloo(meeting, name, rank, world, "127.0.0.1", TIMEOUT_S, out);
}

/* Makes the communicators, the engine and a batch, and lets `use` work with them. */
static struct err *
with_engine(int rank, int world, const struct meeting *meeting, const struct trial *t,
            struct err *(*use)(struct engine *, const struct trial *, int, struct batch *))
{
    struct model_config config = model();
    struct objective_spec o = objective(t);
    struct comm *all, *group;
    int members[MAX_RANKS], replica = rank / t->degree;
    for (int i = 0; i < t->degree; i++)
        members[i] = replica * t->degree + i;
    struct meeting_group part = {meeting, world, members, t->degree};
    struct meeting within = meeting_of_group(&part);
    TRY(connect(meeting, "world", rank, world, &all));
    TRY(connect(&within, "group", rank % t->degree, t->degree, &group));
    struct engine_options options = {
        .kernels = kernels_cpu(),
        .world = all,
        .group = group,
        .model = &config,
        .objective = o,
        .mode = t->mode,
        .recompute = t->recompute,
        .lengths = {LENGTH * t->micro, LENGTH},
    };
    struct engine *engine = NULL;
    struct batch *b = NULL;
    struct err *e = engine_create(&options, &engine);
    if (!e)
        e = engine_init(engine, SEED);
    if (!e)
        e = batch_create(LENGTH * t->micro, o.block_size, o.views, &b);
    if (!e)
        e = use(engine, t, replica, b);
    batch_destroy(b);
    engine_destroy(engine);
    comm_destroy(group);
    comm_destroy(all);
    return e;
}

static struct err *use_train(struct engine *engine, const struct trial *t, int replica,
                             struct batch *b)
{
    struct result result = {0};
    TRY(train(engine, t, replica, b, &result));
    ranks_result(&result, sizeof result);
    return NULL;
}

static struct err *rank_trains(int rank, int world, const struct meeting *meeting, void *user)
{
    return with_engine(rank, world, meeting, user, use_train);
}

/* The whole gradient of the first step, and its loss in front. */
static struct err *use_gradient(struct engine *engine, const struct trial *t, int replica,
                                struct batch *b)
{
    struct engine_sums sums;
    TRY(one_step(engine, t, replica, b, 0, &sums));
    float *flat = malloc((size_t)engine_parameters(engine)->count * sizeof *flat);
    if (!flat)
        return err_no_memory();
    struct err *e = engine_gradients(engine, sums.denominator, flat);
    double loss = sums.loss / sums.denominator;
    ranks_result(&loss, sizeof loss);
    ranks_result(flat, (size_t)engine_parameters(engine)->count * sizeof *flat);
    free(flat);
    return e;
}

static struct err *rank_gives_gradient(int rank, int world, const struct meeting *meeting,
                                       void *user)
{
    return with_engine(rank, world, meeting, user, use_gradient);
}

static void run(ranks_body body, struct trial *t, struct rank_outcome *outcomes)
{
    struct err *e = ranks_run(t->degree * t->data, body, t, TIMEOUT_S, outcomes);
    if (e)
        fail_msg("%s %d x %d: %s", parallel_mode_name(t->mode), t->degree, t->data, err_message(e));
}

static struct result train_as(struct trial t)
{
    struct rank_outcome outcomes[MAX_RANKS] = {0};
    run(rank_trains, &t, outcomes);
    struct result result;
    assert_int_equal(outcomes[0].result_bytes, sizeof result);
    memcpy(&result, outcomes[0].result, sizeof result);
    for (int r = 1; r < t.degree * t.data; r++) /* all ranks know the same numbers */
        assert_memory_equal(outcomes[r].result, &result, sizeof result);
    ranks_free(outcomes, t.degree * t.data);
    return result;
}

static void expect_same_curve(const struct result *a, const struct result *b, const char *what)
{
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(a->losses[i] - b->losses[i]) <= 1e-4 * fabs(a->losses[i])) ||
            !(fabs(a->norms[i] - b->norms[i]) <= 1e-3 * fabs(a->norms[i])))
            fail_msg("%s, step %d: loss %.8g and %.8g, norm %.6g and %.6g", what, i + 1,
                     a->losses[i], b->losses[i], a->norms[i], b->norms[i]);
}

static void check_modes(struct trial base)
{
    static const struct {
        enum parallel_mode mode;
        int degree, data, micro;
    } ways[] = {
        {MODE_CSBP, 2, 1, 1}, {MODE_CSBP, 4, 1, 1}, {MODE_CP, 2, 1, 1},   {MODE_CP, 4, 1, 2},
        {MODE_BP, 2, 1, 1},   {MODE_BP, 4, 1, 1},   {MODE_CSBP, 2, 2, 1}, {MODE_NONE, 1, 4, 1},
    };
    base.mode = MODE_NONE;
    base.degree = base.data = base.micro = 1;
    base.steps = STEPS;
    struct result expected = train_as(base);
    assert_true(isfinite(expected.losses[0]));
    assert_true(expected.losses[STEPS - 4] < 0.9 * expected.losses[0]); /* it learns */
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct trial t = base;
        char what[64];
        t.mode = ways[i].mode;
        t.degree = ways[i].degree;
        t.data = ways[i].data;
        t.micro = ways[i].micro;
        struct result got = train_as(t);
        snprintf(what, sizeof what, "%s %d x data %d", parallel_mode_name(t.mode), t.degree,
                 t.data);
        expect_same_curve(&expected, &got, what);
    }
}

static void test_block_diffusion_is_the_same_in_every_mode(void **state)
{
    (void)state;
    check_modes((struct trial){.type = OBJECTIVE_BLOCK_DIFFUSION, .views = 1});
}

static void test_two_views_are_the_same_in_every_mode(void **state)
{
    (void)state;
    check_modes((struct trial){.type = OBJECTIVE_BLOCK_DIFFUSION, .views = 2});
}

static void test_fast_dllm_v2_is_the_same_in_every_mode(void **state)
{
    (void)state;
    check_modes((struct trial){.type = OBJECTIVE_FAST_DLLM_V2, .views = 2});
}

static void test_autoregressive_is_the_same_in_every_mode(void **state)
{
    (void)state;
    check_modes((struct trial){.type = OBJECTIVE_AUTOREGRESSIVE, .views = 0});
}

static void test_same_topology_is_bitwise_the_same(void **state)
{
    (void)state;
    struct trial t = {.type = OBJECTIVE_BLOCK_DIFFUSION,
                      .views = 1,
                      .mode = MODE_CSBP,
                      .degree = 2,
                      .data = 2,
                      .micro = 1,
                      .steps = STEPS};
    struct result a = train_as(t), b = train_as(t);
    assert_memory_equal(&a, &b, sizeof a);
    t.recompute = RECOMPUTE_NONE; /* keeping activations changes no bit either */
    struct result c = train_as(t);
    assert_memory_equal(&a, &c, sizeof a);
}

static void test_cutting_a_step_changes_nothing(void **state)
{
    (void)state;
    struct trial t = {.type = OBJECTIVE_BLOCK_DIFFUSION, .views = 1, .data = 1, .degree = 1};
    struct rank_outcome whole[1] = {0};
    t.micro = SEQUENCES;
    run(rank_gives_gradient, &t, whole);
    double loss = *(const double *)whole[0].result;
    const float *gradient = (const float *)((const char *)whole[0].result + sizeof loss);
    size_t n = (whole[0].result_bytes - sizeof loss) / sizeof *gradient;
    for (int cut = 0; cut < 5; cut++) {
        static const struct {
            int micro, degree, data;
        } ways[] = {{2, 1, 1}, {1, 1, 1}, {2, 4, 1}, {1, 2, 2}, {1, 1, 4}};
        struct rank_outcome parts[MAX_RANKS] = {0};
        t.micro = ways[cut].micro;
        t.degree = ways[cut].degree;
        t.data = ways[cut].data;
        t.mode = t.degree > 1 ? MODE_CSBP : MODE_NONE;
        run(rank_gives_gradient, &t, parts);
        assert_true(fabs(*(const double *)parts[0].result - loss) <= 1e-6 * loss);
        const float *got = (const float *)((const char *)parts[0].result + sizeof loss);
        double difference = 0, norm = 0;
        for (size_t i = 0; i < n; i++) {
            difference += ((double)got[i] - gradient[i]) * ((double)got[i] - gradient[i]);
            norm += (double)gradient[i] * gradient[i];
        }
        assert_true(norm > 0 && sqrt(difference / norm) <= 1e-5);
        ranks_free(parts, t.degree * t.data);
    }
    ranks_free(whole, 1);
}

/* What the dry run says a rank will need, against what the engine takes. */
static struct err *rank_sizes_memory(int rank, int world, const struct meeting *meeting, void *user)
{
    const struct job_spec *spec = user;
    struct comm *comm;
    struct plan_estimate estimate;
    int64_t length = spec->data.sequence_length * spec->batch.micro_sequences;
    TRY(plan_estimate(spec, spec->parallel.mode, world, rank, sizeof(float), &estimate));
    TRY(connect(meeting, "world", rank, world, &comm));
    struct engine_options options = {
        .kernels = kernels_cpu(),
        .world = comm,
        .group = comm,
        .model = &spec->model.config,
        .objective = spec->objective,
        .mode = spec->parallel.mode,
        .recompute = spec->recompute,
        .lengths = {length, spec->data.sequence_length},
    };
    struct engine *engine = NULL;
    struct err *e = engine_create(&options, &engine);
    if (!e) {
        double sizes[2] = {(double)(estimate.total_bytes - estimate.checkpoint_bytes),
                           (double)engine_memory_bytes(engine)};
        ranks_result(sizes, sizeof sizes);
    }
    engine_destroy(engine);
    comm_destroy(comm);
    return e;
}

static void test_memory_is_as_planned(void **state)
{
    (void)state;
    static const char *const specs[] = {
        "\"parallel\": {\"mode\": \"none\"}, \"recompute\": \"none\"",
        "\"parallel\": {\"mode\": \"csbp\", \"degree\": 2}",
        "\"parallel\": {\"mode\": \"csbp\", \"degree\": 3}, \"recompute\": \"none\"",
        "\"parallel\": {\"mode\": \"cp\", \"degree\": 2}",
        "\"parallel\": {\"mode\": \"bp\", \"degree\": 4}, "
        "\"batch\": {\"sequences\": 4, \"micro_sequences\": 2}",
    };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        char text[2048];
        snprintf(text, sizeof text,
                 "{\"model\": {\"init\": \"random\", \"config\": {\"model_type\": \"qwen3\", "
                 "\"vocab_size\": 400, \"hidden_size\": 128, \"intermediate_size\": 256, "
                 "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, "
                 "\"num_key_value_heads\": 2, \"head_dim\": 32, \"rms_norm_eps\": 1e-6, "
                 "\"use_sliding_window\": true, \"max_window_layers\": 2, "
                 "\"sliding_window\": 100}}, \"data\": {\"path\": \"/x\", "
                 "\"sequence_length\": 1024}, \"steps\": 1, %s}",
                 specs[i]);
        struct job_spec spec;
        struct problems problems = {0};
        cJSON *json = cJSON_Parse(text);
        assert_non_null(json);
        spec_parse(json, &spec, &problems);
        if (problems_count(&problems))
            fail_msg("%s: %s", problems.items[0].path, problems.items[0].message);
        int world = spec_world_size(&spec);
        struct rank_outcome outcomes[MAX_RANKS] = {0};
        struct err *e = ranks_run(world, rank_sizes_memory, &spec, TIMEOUT_S, outcomes);
        if (e)
            fail_msg("%s", err_message(e));
        for (int r = 0; r < world; r++) {
            const double *sizes = outcomes[r].result;
            if (!(fabs(sizes[0] - sizes[1]) <= 0.03 * sizes[1]))
                fail_msg("spec %zu, rank %d: planned %.0f bytes, took %.0f", i, r, sizes[0],
                         sizes[1]);
        }
        ranks_free(outcomes, world);
        spec_free(&spec);
        problems_free(&problems);
        cJSON_Delete(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_diffusion_is_the_same_in_every_mode),
        cmocka_unit_test(test_two_views_are_the_same_in_every_mode),
        cmocka_unit_test(test_fast_dllm_v2_is_the_same_in_every_mode),
        cmocka_unit_test(test_autoregressive_is_the_same_in_every_mode),
        cmocka_unit_test(test_same_topology_is_bitwise_the_same),
        cmocka_unit_test(test_cutting_a_step_changes_nothing),
        cmocka_unit_test(test_memory_is_as_planned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
