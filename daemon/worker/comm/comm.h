/* Collectives between the ranks of a job. One interface, two engines: self (one rank) and gloo (CPU
 * workers over TCP, comm_gloo.cc); comm_engine.h is where another one plugs in.
 *
 * Every rank of a communicator calls the same operations in the same order. Buffers are device
 * memory of the backend that the communicator was made for. Operations are queued like kernels
 * (kernels.h): on the CPU they have happened, or failed, when the call returns; a failure is kept
 * by the communicator, makes every later operation a no-op, and comes back from comm_failure.
 * Sums are taken in rank order, so a result does not depend on timing.
 */
#ifndef WORKER_COMM_H
#define WORKER_COMM_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "kernels/kernels.h"

struct comm;

/* The one primitive of every meeting (docs/worker-protocol.md): each rank posts bytes under a key
 * and gets everybody's. `all` has world entries, freed by meeting_free. Blocks until the set is
 * complete, at most timeout_s. */
struct meeting_bytes {
    void *data;
    size_t bytes;
};
struct meeting {
    struct err *(*exchange)(void *user, const char *key, const void *data, size_t bytes, int world,
                            double timeout_s, struct meeting_bytes *all);
    void *user;
};
void meeting_free(struct meeting_bytes *all, int world);

/* A meeting of everybody, seen by a part of them: every rank of the whole meeting exchanges under
 * the same key at the same time, each within its own group, and gets what its group posted.
 * members [n_members] are ranks of the whole meeting, in the group's order. g and what it points
 * to must outlive the result. */
struct meeting_group {
    const struct meeting *whole;
    int whole_world;
    const int *members;
    int n_members;
};
struct meeting meeting_of_group(struct meeting_group *g);

struct comm_counters {
    int64_t sent_bytes, received_bytes; /* payload to and from other ranks, since creation */
};

struct err *comm_create_self(struct comm **out);
/* `name` tells the communicators of a job apart, up to 64 characters: it becomes part of the
 * meeting's key, so all ranks of the meeting give the same: "world", or "group" for every group.
 * address: where to listen, e.g. "127.0.0.1" or the node's address. timeout_s bounds this call's
 * meeting, its connecting, and later the wait in any operation. A rank that is gone is an
 * ERR_ABORTED at once, one that is silent an ERR_TIMEOUT. The process ignores SIGPIPE from here
 * on. */
struct err *comm_create_gloo(const struct meeting *meeting, const char *name, int rank, int world,
                             const char *address, double timeout_s, struct comm **out);
void comm_destroy(struct comm *c);

int comm_rank(const struct comm *c);
int comm_world(const struct comm *c);
struct comm_counters comm_counters(const struct comm *c);

/* recv [world, bytes] gets each rank's `bytes`; send may be recv's own slot. */
void comm_all_gather(struct comm *c, struct kernel_queue *q, const void *send, void *recv,
                     size_t bytes);
/* recv [count] = sum over ranks of their send [world, count] at this rank's slot; fp32. recv may be
 * the own slot of send. scratch [world, count] fp32 is overwritten where an engine needs it. */
void comm_reduce_scatter(struct comm *c, struct kernel_queue *q, const float *send, float *recv,
                         size_t count, float *scratch);
/* send holds counts send_bytes[r] for each rank r, one behind the other; recv likewise. The own
 * part is copied and not counted as traffic. */
void comm_all_to_all(struct comm *c, struct kernel_queue *q, const void *send,
                     const size_t *send_bytes, void *recv, const size_t *recv_bytes);
/* values [count], host memory, small: replaced by their sums over ranks, in rank order. Waits. */
struct err *comm_sum(struct comm *c, double *values, size_t count);
struct err *comm_barrier(struct comm *c);

/* The first failure, or NULL: a copy of it, owned by the caller; the communicator stays failed. */
struct err *comm_failure(struct comm *c);

#endif
