/* From a prepared dataset into a micro-batch. */
#ifndef WORKER_SAMPLE_H
#define WORKER_SAMPLE_H

#include "daemon/base/err.h"
#include "daemon/worker/data/dataset.h"
#include "daemon/worker/objective/batch.h"

/* Puts the split's sequence into rows [row, row + sequence length) of the batch. Sequences of a
 * batch are put in order of row, after batch_clear. */
struct err *sample_fill(const struct dataset *dataset, enum dataset_split split, int64_t sequence,
                        struct batch *batch, int64_t row);

#endif
