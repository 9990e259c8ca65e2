/* One micro-batch as every rank of a group knows it: tokens, documents, corruption, and what the
 * objective makes of them (docs/mathematics.md, "Objectives"; BD3-LM, arXiv 2503.09573;
 * Fast-dLLM v2, arXiv 2509.26328).
 *
 * Each rank holds the whole micro-batch's ids and masks, so labels across a block's or a shard's
 * boundary need no exchange. Several sequences lie end to end.
 */
#ifndef WORKER_BATCH_H
#define WORKER_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/plan/plan.h"
#include "daemon/plan/spec.h"

/* Fast-dLLM v2 masks with probability (1 - eps) t + eps. */
#define FAST_DLLM_V2_EPS 1e-3f

struct batch {
    int64_t length; /* rows: sequences x sequence length */
    int64_t block_size;
    int views;
    int32_t *ids;        /* [length] */
    uint8_t *supervised; /* [length] */
    int32_t *document;   /* [length] index into documents, -1: padding */
    struct plan_document *documents;
    size_t n_documents;
    float *t;           /* [views, length / block_size] */
    uint8_t *corrupted; /* [views, length] */
};

/* Memory for `length` rows; everything zero, no documents, all rows padding. */
struct err *batch_create(int64_t length, int64_t block_size, int views, struct batch **out);
void batch_destroy(struct batch *b);
/* Forgets the documents: all rows are padding again. */
void batch_clear(struct batch *b);
/* Rows [begin, end) become a document. Documents come in order. */
void batch_add_document(struct batch *b, int64_t begin, int64_t end);

/* Which draws: a run's own, or those that every evaluation shares whatever its seed. */
enum corruption { CORRUPTION_TRAINING, CORRUPTION_EVALUATION };

/* Draws times and masks of rows [begin, begin + length): one sequence, number `sample` counted over
 * epochs. A function of (seed, sample, view, position) alone. */
void batch_corrupt(struct batch *b, const struct objective_spec *objective, uint64_t seed,
                   enum corruption which, uint64_t sample, int64_t begin, int64_t length);

/* What the whole micro-batch adds to N. */
int64_t batch_denominator(const struct batch *b, const struct objective_spec *objective);

/* Tokens of this rank's rows: ids [layout->n_rows]. */
void batch_row_ids(const struct batch *b, const struct objective_spec *objective,
                   const struct plan_layout *layout, int32_t *ids);

/* This rank's rows that carry loss; the arrays hold at least layout->n_rows. Returns their count.
 */
int64_t batch_loss_rows(const struct batch *b, const struct objective_spec *objective,
                        const struct plan_layout *layout, int32_t *rows, int32_t *labels,
                        float *weights);

/* The objective by which every run is evaluated: the inverse-t bound in nats per token, one view,
 * stratified times (autoregressive: the exact likelihood). */
struct objective_spec objective_for_evaluation(const struct objective_spec *training);

#endif
