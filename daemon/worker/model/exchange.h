/* A layer's keys and values across the group, and their gradients back: what the plan's exchange of
 * one kind of layer says, done with collectives on a queue of their own, so that attention over
 * local keys runs meanwhile. */
#ifndef WORKER_EXCHANGE_H
#define WORKER_EXCHANGE_H

#include "daemon/plan/plan.h"
#include "daemon/worker/comm/comm.h"
#include "kernels/kernels.h"

struct exchange {
    const struct kernels *kernels;
    struct comm *group;
    struct kernel_queue *compute, *wire;
    struct kernel_event *packed, *arrived;
    double exposed_s; /* time the caller stood still for the wire, summed */
};

struct err *exchange_create(const struct kernels *kernels, struct comm *group,
                            struct kernel_queue *compute, struct exchange *out);
void exchange_destroy(struct exchange *x);

/* remote_kv [buffer rows, w] gets what the plan says of everybody's kv [n, w]. packed_kv
 * [send rows, w] is scratch. begin queues it; after end, work in the compute queue sees it. */
void exchange_forward_begin(struct exchange *x, const struct plan_kind *kind, struct tensor kv,
                            struct tensor packed_kv, struct tensor remote_kv);
void exchange_forward_end(struct exchange *x, const struct plan_kind *kind);

/* The transpose, all in fp32: d_kv [n, w] += the gradients that all ranks hold in d_remote_kv for
 * this rank's rows. d_packed_kv [send rows, w] and reduce, of d_remote_kv's size, are scratch.
 * d_remote_kv is used up. */
void exchange_backward_begin(struct exchange *x, const struct plan_kind *kind,
                             struct tensor d_remote_kv, struct tensor d_packed_kv, float *reduce);
void exchange_backward_end(struct exchange *x, const struct plan_kind *kind, struct tensor d_kv,
                           struct tensor d_remote_kv, struct tensor d_packed_kv);

#endif
