/* What a second view of a sequence costs. The clean stream is computed once for all views, so a
 * step with two views has 3 L rows where two steps of one view have 4 L: less than twice by a
 * quarter of the row-wise work, and by the clean stream's share of the attention.
 *
 * Prints, for several lengths, the time of a step (forward and backward, one rank, fp32 on the CPU)
 * with one and with two views, their ratio, and what counting predicts. The two are run in turn;
 * the times are medians, the spread is (largest - smallest) / median of the ratio.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/philox.h"
#include "daemon/worker/engine.h"

#define REPEATS 5
#define BLOCK 16
#define VOCAB 260
#define MASK 257

static const struct model_config model = {
    .family = MODEL_QWEN3,
    .hidden = 128,
    .intermediate = 384,
    .layers = 4,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 32,
    .vocab = VOCAB,
    .rms_norm_eps = 1e-6f,
    .rope = {.theta = 10000},
    .initializer_range = 0.02f,
    .tie_embeddings = true,
    .head_norm = true,
};

struct subject {
    struct objective_spec objective;
    struct engine *engine;
    struct batch *batch;
};

static struct err *subject_create(struct comm *comm, int views, int64_t length, struct subject *s)
{
    s->objective = (struct objective_spec){
        .type = OBJECTIVE_BLOCK_DIFFUSION,
        .block_size = BLOCK,
        .mask_token_id = MASK,
        .views = views,
        .loss_weighting = LOSS_INVERSE_T,
        .t_min = 0.001f,
        .t_max = 1.0f,
        .antithetic = true,
    };
    struct engine_options options = {
        .kernels = kernels_cpu(),
        .world = comm,
        .group = comm,
        .model = &model,
        .objective = s->objective,
        .mode = MODE_NONE,
        .recompute = RECOMPUTE_LAYER,
        .lengths = {length, length},
    };
    TRY(engine_create(&options, &s->engine));
    TRY(engine_init(s->engine, 1));
    TRY(batch_create(length, BLOCK, views, &s->batch));
    batch_add_document(s->batch, 0, length);
    memset(s->batch->supervised, 1, (size_t)length);
    for (int64_t i = 0; i < length; i++)
        s->batch->ids[i] = (int32_t)(philox_bits(1, PHILOX_ORDER, 0, 0, (uint64_t)i) % 256);
    batch_corrupt(s->batch, &s->objective, 1, CORRUPTION_TRAINING, 0, 0, length);
    return NULL;
}

static void subject_destroy(struct subject *s)
{
    batch_destroy(s->batch);
    engine_destroy(s->engine);
}

static struct err *time_step(struct subject *s, double *seconds)
{
    struct engine_sums sums = {0};
    double began = clock_s();
    engine_zero_gradients(s->engine);
    TRY(engine_accumulate(s->engine, s->batch, &s->objective, true, &sums));
    *seconds = clock_s() - began;
    return NULL;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Multiplications of a forward, up to a common factor: products of rows, attention of pairs, and
 * the projection of loss rows (half of them are masked). */
static double predicted_work(double views, double length)
{
    const struct model_config *m = &model;
    double per_row = (double)((m->heads + 2 * m->kv_heads) * m->head_dim * m->hidden +
                              m->heads * m->head_dim * m->hidden + 3 * m->hidden * m->intermediate);
    double pairs =
        views * (length * (length - BLOCK) / 2 + length * BLOCK) + length * (length + BLOCK) / 2;
    double attention = 2.0 * pairs * (double)(m->heads * m->head_dim);
    return (double)m->layers * ((1 + views) * length * per_row + attention) +
           views * length / 2 * (double)(m->vocab * m->hidden);
}

static struct err *measure(struct comm *comm, int64_t length)
{
    struct subject subjects[2] = {0};
    double times[2][REPEATS], ratios[REPEATS];
    struct err *e = NULL;
    for (int i = 0; !e && i < 2; i++) {
        e = subject_create(comm, i + 1, length, &subjects[i]);
        if (!e)
            e = time_step(&subjects[i], &times[i][0]); /* warm-up */
    }
    for (int r = 0; !e && r < REPEATS; r++) {
        for (int i = 0; !e && i < 2; i++)
            e = time_step(&subjects[i], &times[i][r]);
        ratios[r] = times[1][r] / times[0][r];
    }
    for (int i = 0; i < 2; i++)
        subject_destroy(&subjects[i]);
    if (e)
        return e;
    qsort(times[0], REPEATS, sizeof(double), by_size);
    qsort(times[1], REPEATS, sizeof(double), by_size);
    qsort(ratios, REPEATS, sizeof(double), by_size);
    double median = ratios[REPEATS / 2];
    printf("%8lld %12.3f %12.3f %8.2f %10.2f %7.0f%%\n", (long long)length, times[0][REPEATS / 2],
           times[1][REPEATS / 2], median,
           predicted_work(2, (double)length) / predicted_work(1, (double)length),
           100 * (ratios[REPEATS - 1] - ratios[0]) / median);
    return NULL;
}

int main(void)
{
    static const int64_t lengths[] = {512, 2048, 4096};
    struct comm *comm = NULL;
    struct err *e = comm_create_self(&comm);
    printf("%8s %12s %12s %8s %10s %8s\n", "L", "one view s", "two views s", "ratio", "predicted",
           "spread");
    for (size_t i = 0; !e && i < sizeof lengths / sizeof *lengths; i++)
        e = measure(comm, lengths[i]);
    if (e)
        fprintf(stderr, "views: %s\n", err_message(e));
    comm_destroy(comm);
    int status = e ? EXIT_FAILURE : EXIT_SUCCESS;
    err_free(e);
    return status;
}
