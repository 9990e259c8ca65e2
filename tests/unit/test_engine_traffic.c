/* What a training step really sends, by the kernel's count on an interface that nobody else uses,
 * against the plan; and CSBP against CP. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/worker/engine.h"
#include "tests/support/netns.h"
#include "tests/support/ranks.h"

#define LENGTH 2048
#define MAX_RANKS 4
#define TIMEOUT_S 240.0
#define TOLERANCE 0.03      /* headers, acknowledgements */
#define BARRIER_BYTES 16384 /* at most, of the barriers around a measurement */

/* Of all ranks together: what the plan says, what the communicators count, what the kernel does. */
struct traffic {
    double planned, counted, wire;
};
struct measured {
    struct traffic attention; /* one forward and backward */
    struct traffic update;    /* gradients and weights of one step */
};

struct rank_report {
    struct measured rank;
    double wire_attention, wire_update; /* rank 0 alone reads the interface */
};

static struct err *read_wire(struct comm *comm, double *out)
{
    int64_t bytes = 0;
    TRY(comm_barrier(comm));
    if (comm_rank(comm) == 0)
        TRY(netns_received_bytes("lo", &bytes));
    *out = (double)bytes;
    return comm_barrier(comm);
}

static double received(const struct comm *comm)
{
    return (double)comm_counters(comm).received_bytes;
}

static struct err *step(struct engine *engine, struct comm *comm, const struct batch *b,
                        const struct objective_spec *o, struct rank_report *out)
{
    double wire[3];
    struct engine_sums sums = {0};
    double counted = received(comm), norm;
    engine_zero_gradients(engine);
    TRY(read_wire(comm, &wire[0]));
    TRY(engine_accumulate(engine, b, o, true, &sums));
    out->rank.attention.counted = received(comm) - counted;
    TRY(read_wire(comm, &wire[1]));
    TRY(engine_finish_sums(engine, &sums, NULL, 0));
    counted = received(comm);
    struct adamw options = {.lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .step = 1};
    TRY(engine_update(engine, sums.denominator, &options, 1.0f, &norm));
    out->rank.update.counted = received(comm) - counted;
    TRY(read_wire(comm, &wire[2]));
    out->wire_attention = wire[1] - wire[0];
    out->wire_update = wire[2] - wire[1];
    return NULL;
}

static struct err *with_engine(struct comm *comm, const struct job_spec *spec,
                               struct rank_report *out)
{
    struct engine_options options = {
        .kernels = kernels_cpu(),
        .world = comm,
        .group = comm,
        .model = &spec->model.config,
        .objective = spec->objective,
        .mode = spec->parallel.mode,
        .recompute = spec->recompute,
        .lengths = {LENGTH, LENGTH},
    };
    struct engine *engine = NULL;
    struct batch *b = NULL;
    struct err *e = engine_create(&options, &engine);
    if (!e)
        e = engine_init(engine, 1);
    if (!e)
        e = batch_create(LENGTH, spec->objective.block_size, spec->objective.views, &b);
    if (!e) {
        batch_add_document(b, 0, LENGTH);
        for (int64_t i = 0; i < LENGTH; i++) {
            b->ids[i] = (int32_t)(i * 37 % 256);
            b->supervised[i] = 1;
        }
        batch_corrupt(b, &spec->objective, 1, CORRUPTION_TRAINING, 0, 0, LENGTH);
        e = step(engine, comm, b, &spec->objective, out);
    }
    batch_destroy(b);
    engine_destroy(engine);
    return e;
}

static struct err *rank_measures(int rank, int world, const struct meeting *meeting, void *user)
{
    const struct job_spec *spec = user;
    struct rank_report report = {0};
    struct plan_estimate estimate;
    struct comm *comm;
    TRY(plan_estimate(spec, spec->parallel.mode, world, rank, sizeof(float), &estimate));
    report.rank.attention.planned = (double)estimate.attention_wire_bytes;
    report.rank.update.planned = (double)estimate.step_wire_bytes;
    TRY(comm_create_gloo(meeting, "world", rank, world, "127.0.0.1", TIMEOUT_S, &comm));
    struct err *e = with_engine(comm, spec, &report);
    comm_destroy(comm);
    if (!e)
        ranks_result(&report, sizeof report);
    return e;
}

/* window 0: full attention in every layer. */
static struct job_spec read_spec(const char *mode, int degree, int window)
{
    char text[2048], sliding[128] = "";
    if (window)
        snprintf(sliding, sizeof sliding,
                 "\"use_sliding_window\": true, \"max_window_layers\": 0, \"sliding_window\": %d,",
                 window);
    snprintf(text, sizeof text,
             "{\"model\": {\"init\": \"random\", \"config\": {%s \"model_type\": \"qwen3\", "
             "\"vocab_size\": 260, \"hidden_size\": 64, \"intermediate_size\": 128, "
             "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
             "\"head_dim\": 32}}, \"data\": {\"path\": \"/x\", \"sequence_length\": %d}, "
             "\"parallel\": {\"mode\": \"%s\", \"degree\": %d}, \"batch\": {\"sequences\": 1}, "
             "\"objective\": {\"block_size\": 16}, \"steps\": 1}",
             sliding, LENGTH, mode, degree);
    struct job_spec spec;
    struct problems problems = {0};
    cJSON *json = cJSON_Parse(text);
    assert_non_null(json);
    spec_parse(json, &spec, &problems);
    if (problems_count(&problems))
        fail_msg("%s: %s", problems.items[0].path, problems.items[0].message);
    cJSON_Delete(json);
    return spec;
}

static void expect_near(const char *what, const struct traffic *t)
{
    print_message("%-24s planned %11.0f  counted %11.0f  wire %11.0f\n", what, t->planned,
                  t->counted, t->wire);
    if (!(fabs(t->counted - t->planned) <= TOLERANCE * t->planned) ||
        !(fabs(t->wire - t->planned) <= TOLERANCE * t->planned + BARRIER_BYTES))
        fail_msg("%s: planned %.0f bytes, counted %.0f, on the wire %.0f", what, t->planned,
                 t->counted, t->wire);
}

static struct measured measure(const char *mode, int degree, int window)
{
    struct job_spec spec = read_spec(mode, degree, window);
    struct rank_outcome outcomes[MAX_RANKS] = {0};
    struct err *e = ranks_run(degree, rank_measures, &spec, TIMEOUT_S, outcomes);
    if (e)
        fail_msg("%s %d: %s", mode, degree, err_message(e));
    struct measured sum = {0};
    for (int r = 0; r < degree; r++) {
        const struct rank_report *report = outcomes[r].result;
        sum.attention.planned += report->rank.attention.planned;
        sum.attention.counted += report->rank.attention.counted;
        sum.update.planned += report->rank.update.planned;
        sum.update.counted += report->rank.update.counted;
        sum.attention.wire += report->wire_attention; /* 0 but for rank 0 */
        sum.update.wire += report->wire_update;
    }
    ranks_free(outcomes, degree);
    spec_free(&spec);
    char what[64];
    snprintf(what, sizeof what, "%s %d window %d", mode, degree, window);
    expect_near(what, &sum.attention);
    return sum;
}

static void traffic_is_as_planned(void **state)
{
    (void)state;
    struct measured csbp = measure("csbp", 4, 0), cp = measure("cp", 4, 0);
    struct measured windowed = measure("csbp", 4, LENGTH / 8), bp = measure("bp", 2, 0);
    expect_near("update of csbp 4", &csbp.update);
    assert_true(bp.attention.planned == 0);
    assert_true(2 * csbp.attention.counted <= cp.attention.counted);
    assert_true(csbp.attention.wire <= (1 + TOLERANCE) / 2 * cp.attention.wire);
    assert_true(5 * windowed.attention.wire <= cp.attention.wire);
    measure("csbp", 2, 0);
    measure("csbp", 3, 0); /* nothing divides */
}

/* Where a network namespace cannot be had the whole program is skipped, and says so to Meson. */
#define SKIPPED 77

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(traffic_is_as_planned),
    };
    struct err *e = netns_enter();
    if (e) {
        print_message("skipped: %s\n", err_message(e));
        err_free(e);
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
