/* Training that goes on from a checkpoint: saved at step 3 of 6 while it went on, loaded in every
 * mode and world, the rest of the curve is the same; in the same world to the bit. */
#include <math.h>

#include "daemon/worker/engine.h"
#include "tests/support/ranks.h"
#include "tests/unit/checkpoint_fixture.h"

#define STEPS 6
#define SAVED 3
#define SEQUENCES 4
#define LENGTH 64
#define BLOCK 8
#define VOCAB 61
#define MASK 60
#define SEED 17
#define TIMEOUT_S 120.0
#define MAX_RANKS 4

struct trial {
    enum parallel_mode mode;
    int degree, data;
    bool untied;
    const char *directory;
    bool resumes; /* from the newest checkpoint of the directory; else from the seed, saving one */
};

struct result {
    int64_t first; /* step done before */
    double losses[STEPS], norms[STEPS];
};

static struct model_config model(const struct trial *t)
{
    return (struct model_config){
        .family = MODEL_QWEN3,
        .hidden = 32,
        .intermediate = 48,
        .layers = 2,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 8,
        .vocab = VOCAB,
        .rms_norm_eps = 1e-6f,
        .rope = {.theta = 10000},
        .initializer_range = 0.08f,
        .tie_embeddings = !t->untied,
        .head_norm = true,
    };
}

static const struct objective_spec objective = {
    .type = OBJECTIVE_BLOCK_DIFFUSION,
    .block_size = BLOCK,
    .mask_token_id = MASK,
    .views = 1,
    .loss_weighting = LOSS_INVERSE_T,
    .t_min = 0.001f,
    .t_max = 1.0f,
    .antithetic = true,
};

static void fill(struct batch *b, uint64_t sample)
{
    batch_clear(b);
    batch_add_document(b, 0, 20 + (int64_t)(sample % 5));
    batch_add_document(b, 20 + (int64_t)(sample % 5), LENGTH);
    for (int64_t i = 0; i < LENGTH; i++) {
        b->ids[i] = (int32_t)((uint64_t)(i * 7 + i / 5) + sample % 3) % MASK;
        b->supervised[i] = 1;
    }
    batch_corrupt(b, &objective, SEED, CORRUPTION_TRAINING, sample, 0, LENGTH);
}

static struct err *one_step(struct engine *engine, const struct trial *t, int replica,
                            struct batch *b, int64_t step, int64_t position, struct result *out)
{
    struct engine_sums sums = {0};
    struct adamw options = {.lr = 3e-3f,
                            .beta1 = 0.9f,
                            .beta2 = 0.95f,
                            .eps = 1e-8f,
                            .weight_decay = 0.1f,
                            .step = step};
    int per_replica = SEQUENCES / t->data;
    engine_zero_gradients(engine);
    for (int i = 0; i < per_replica; i++) {
        fill(b, (uint64_t)(position + replica * per_replica + i));
        TRY(engine_accumulate(engine, b, &objective, true, &sums));
    }
    TRY(engine_finish_sums(engine, &sums, NULL, 0));
    TRY(engine_update(engine, sums.denominator, &options, 1.0f, &out->norms[step - 1]));
    out->losses[step - 1] = sums.loss / sums.denominator;
    return NULL;
}

static struct err *save(struct engine *engine, struct checkpoint_writer *writer, int64_t step,
                        int64_t position)
{
    const struct checkpoint_snapshot *s = checkpoint_snapshot(writer);
    if (!s)
        return err_new(ERR_INTERNAL, "the writer is not idle");
    TRY(engine_save_state(engine, s->weights, s->m, s->v));
    return checkpoint_begin(writer, step, step, position);
}

static struct err *load(struct engine *engine, const struct trial *t,
                        struct checkpoint_writer *writer, int64_t *step, int64_t *position)
{
    const struct checkpoint_snapshot *s = checkpoint_snapshot(writer);
    struct checkpoint *c = NULL;
    char *path;
    int64_t begin, count;
    TRY(checkpoint_newest(t->directory, &path));
    struct err *e =
        path ? checkpoint_open(path, true, &c) : err_new(ERR_NOT_FOUND, "no checkpoint");
    free(path);
    TRY(e);
    engine_range(engine, &begin, &count);
    e = checkpoint_read(c, engine_parameters(engine), begin, count, s->weights, s->m, s->v);
    *step = checkpoint_manifest(c)->facts.optimizer_step;
    *position = checkpoint_manifest(c)->facts.data_position;
    checkpoint_close(c);
    return e ? e : engine_load_state(engine, s->weights, s->m, s->v);
}

static struct err *train(struct engine *engine, const struct trial *t, int replica, struct batch *b,
                         struct checkpoint_writer *writer)
{
    struct result result = {0};
    struct checkpoint_status status;
    int64_t step = 0, position = 0;
    if (t->resumes)
        TRY(load(engine, t, writer, &step, &position));
    else
        TRY(engine_init(engine, SEED));
    result.first = step;
    while (step < STEPS) {
        TRY(one_step(engine, t, replica, b, ++step, position, &result));
        position += SEQUENCES;
        if (step == SAVED && !t->resumes)
            TRY(save(engine, writer, step, position));
    }
    checkpoint_wait(writer, TIMEOUT_S, &status); /* only now */
    free(status.manifest);
    TRY(status.error);
    ranks_result(&result, sizeof result);
    return NULL;
}

static struct err *connect(const struct meeting *meeting, const char *name, int rank, int world,
                           struct comm **out)
{
    return world == 1 ? comm_create_self(out)
                      : comm_create_gloo(meeting, name, rank, world, "127.0.0.1", TIMEOUT_S, out);
}

static struct err *make_writer(const struct engine *engine, const struct trial *t, int rank,
                               int world, struct checkpoint_writer **out)
{
    cJSON *spec = cJSON_CreateObject();
    struct checkpoint_options options = {
        .kernels = kernels_cpu(),
        .directory = t->directory,
        .facts = {.job = 1,
                  .attempt = 1 + t->resumes,
                  .seed = SEED,
                  .world = world,
                  .mode = parallel_mode_name(t->mode),
                  .degree = t->degree,
                  .data = t->data,
                  .spec = spec},
        .rank = rank,
        .parameters = engine_parameters(engine),
        .patience_s = TIMEOUT_S,
    };
    engine_range(engine, &options.begin, &options.count);
    struct err *e = spec ? checkpoint_writer_create(&options, out) : err_no_memory();
    cJSON_Delete(spec);
    return e;
}

static struct err *rank_trains(int rank, int world, const struct meeting *meeting, void *user)
{
    const struct trial *t = user;
    struct model_config config = model(t);
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
        .objective = objective,
        .mode = t->mode,
        .recompute = RECOMPUTE_LAYER,
        .lengths = {LENGTH, LENGTH},
    };
    struct engine *engine = NULL;
    struct batch *b = NULL;
    struct checkpoint_writer *writer = NULL;
    struct err *e = engine_create(&options, &engine);
    if (!e)
        e = batch_create(LENGTH, BLOCK, objective.views, &b);
    if (!e)
        e = make_writer(engine, t, rank, world, &writer);
    if (!e)
        e = train(engine, t, replica, b, writer);
    checkpoint_writer_destroy(writer);
    batch_destroy(b);
    engine_destroy(engine);
    comm_destroy(group);
    comm_destroy(all);
    return e;
}

static struct result run(struct trial t)
{
    int world = t.degree * t.data;
    struct rank_outcome outcomes[MAX_RANKS] = {0};
    struct result result;
    struct err *e = ranks_run(world, rank_trains, &t, TIMEOUT_S, outcomes);
    if (e)
        fail_msg("%s %d x %d: %s", parallel_mode_name(t.mode), t.degree, t.data, err_message(e));
    for (int r = 0; r < world; r++)
        assert_int_equal(outcomes[r].result_bytes, sizeof result);
    memcpy(&result, outcomes[0].result, sizeof result);
    ranks_free(outcomes, world);
    return result;
}

static const struct trial ways[] = {
    {.mode = MODE_NONE, .degree = 1, .data = 1}, {.mode = MODE_CSBP, .degree = 2, .data = 1},
    {.mode = MODE_CP, .degree = 3, .data = 1},   {.mode = MODE_CSBP, .degree = 2, .data = 2},
    {.mode = MODE_BP, .degree = 4, .data = 1},   {.mode = MODE_NONE, .degree = 1, .data = 2},
};

/* Saves in `from`, resumes everywhere. */
static void check_from(struct trial from)
{
    char directory[64];
    fixture_directory(directory);
    from.directory = directory;
    struct result whole = run(from);
    assert_int_equal(whole.first, 0);
    assert_true(whole.losses[STEPS - 1] < whole.losses[0]);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct trial t = ways[i];
        t.directory = directory;
        t.untied = from.untied;
        t.resumes = true;
        struct result rest = run(t);
        assert_int_equal(rest.first, SAVED);
        bool same = t.mode == from.mode && t.degree == from.degree && t.data == from.data;
        for (int s = SAVED; s < STEPS; s++) {
            double tolerance = same ? 0 : 1e-5;
            if (!(fabs(rest.losses[s] - whole.losses[s]) <= tolerance * whole.losses[s]) ||
                !(fabs(rest.norms[s] - whole.norms[s]) <= 10 * tolerance * whole.norms[s]))
                fail_msg("%s %d x %d to %s %d x %d, step %d: loss %.9g instead of %.9g, norm %.9g "
                         "instead of %.9g",
                         parallel_mode_name(from.mode), from.degree, from.data,
                         parallel_mode_name(t.mode), t.degree, t.data, s + 1, rest.losses[s],
                         whole.losses[s], rest.norms[s], whole.norms[s]);
        }
    }
    fixture_remove(directory);
}

static void test_from_one_rank(void **state)
{
    (void)state;
    check_from(ways[0]);
}

static void test_from_three_ranks(void **state)
{
    (void)state;
    check_from(ways[2]);
}

static void test_from_two_replicas_without_tied_embeddings(void **state)
{
    (void)state;
    struct trial t = ways[3];
    t.untied = true;
    check_from(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_from_one_rank),
        cmocka_unit_test(test_from_three_ranks),
        cmocka_unit_test(test_from_two_replicas_without_tied_embeddings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
