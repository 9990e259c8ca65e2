/* The bound on held-out data: nats per token under a corruption that is the same for every run on
 * the same split, whatever it trains on and however it is parallelized. */
#ifndef WORKER_EVALUATE_H
#define WORKER_EVALUATE_H

#include "daemon/base/err.h"
#include "daemon/plan/spec.h"
#include "daemon/worker/data/dataset.h"
#include "daemon/worker/engine.h"

struct evaluation {
    int64_t sequences;      /* 0: nothing is held out; the rest is then undefined */
    double bound;           /* nats per token */
    double unigram_entropy; /* of the held-out tokens, nats per token */
    double tokens;
    double elapsed_s;
};

/* All ranks call it; all get the same result. Sequence i of the split falls to replica
 * i % parallel.data. */
struct err *evaluate_run(struct engine *engine, const struct dataset *dataset,
                         const struct job_spec *spec, int replica, struct evaluation *out);

#endif
