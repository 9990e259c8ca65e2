#include "daemon/worker/evaluate.h"

#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/worker/sample.h"

/* The corruption's seed: a constant, so that runs of different seeds compare. */
#define EVALUATION_SEED 0

static struct err *accumulate(struct engine *engine, const struct dataset *dataset,
                              const struct job_spec *spec, const struct objective_spec *objective,
                              int replica, int64_t sequences, struct batch *batch,
                              struct engine_sums *sums)
{
    for (int64_t i = replica; i < sequences; i += spec->parallel.data) {
        batch_clear(batch);
        TRY(sample_fill(dataset, DATASET_VALIDATION, i, batch, 0));
        batch_corrupt(batch, objective, EVALUATION_SEED, CORRUPTION_EVALUATION, (uint64_t)i, 0,
                      batch->length);
        TRY(engine_accumulate(engine, batch, objective, false, sums));
    }
    return engine_finish_sums(engine, sums, NULL, 0);
}

struct err *evaluate_run(struct engine *engine, const struct dataset *dataset,
                         const struct job_spec *spec, int replica, struct evaluation *out)
{
    memset(out, 0, sizeof *out);
    double began = clock_s();
    int64_t sequences = dataset_sequences(dataset, DATASET_VALIDATION);
    if (sequences > spec->evaluate.max_sequences)
        sequences = spec->evaluate.max_sequences;
    if (!sequences)
        return NULL;
    struct objective_spec objective = objective_for_evaluation(&spec->objective);
    struct engine_sums sums = {0};
    struct batch *batch;
    TRY(batch_create(spec->data.sequence_length, objective.block_size, objective.views, &batch));
    struct err *e = accumulate(engine, dataset, spec, &objective, replica, sequences, batch, &sums);
    batch_destroy(batch);
    if (e)
        return err_wrap(e, "evaluation");
    if (sums.denominator <= 0)
        return NULL;
    out->sequences = sequences;
    out->bound = sums.loss / sums.denominator;
    out->unigram_entropy = dataset_unigram_entropy(dataset, DATASET_VALIDATION);
    out->tokens = sums.denominator;
    out->elapsed_s = clock_s() - began;
    return NULL;
}
