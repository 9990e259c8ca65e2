/* What an engine fills in behind comm.h. Internal to the communicators: comm.c dispatches, counts
 * and keeps the first failure, so that an engine only moves bytes and reports. An engine is never
 * called again after it failed, except for destroy. */
#ifndef WORKER_COMM_ENGINE_H
#define WORKER_COMM_ENGINE_H

#include "daemon/worker/comm/comm.h"

struct comm_engine {
    struct err *(*all_gather)(struct comm *c, struct kernel_queue *q, const void *send, void *recv,
                              size_t bytes);
    struct err *(*reduce_scatter)(struct comm *c, struct kernel_queue *q, const float *send,
                                  float *recv, size_t count, float *scratch);
    struct err *(*all_to_all)(struct comm *c, struct kernel_queue *q, const void *send,
                              const size_t *send_bytes, void *recv, const size_t *recv_bytes);
    struct err *(*sum)(struct comm *c, double *values, size_t count);
    struct err *(*barrier)(struct comm *c);
    void (*destroy)(struct comm *c); /* frees c as well */
};

/* Embedded as the first member of an engine's own struct. */
struct comm {
    const struct comm_engine *engine;
    int rank, world;
    struct comm_counters counters;
    struct err *failure;
};

#endif
