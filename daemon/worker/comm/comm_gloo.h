/* The C face of Gloo: a mesh of TCP connections between all ranks of a communicator, and one
 * operation over it. Internal to this folder. One thread at a time.
 *
 * A mesh is made in two steps, so that the meeting stays outside: open listens and gives this
 * rank's address block, connect takes everybody's. */
#ifndef WORKER_COMM_GLOO_H
#define WORKER_COMM_GLOO_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "daemon/base/err.h"

struct gloo_mesh;

/* What goes to one rank and what comes from it; both ends agree on the bytes. */
struct gloo_transfer {
    const void *send;
    size_t send_bytes;
    void *recv;
    size_t recv_bytes;
};

/* `block` is owned by the mesh and valid until connect. timeout_s bounds each later call. */
struct err *gloo_mesh_open(const char *name, int rank, int world, const char *address,
                           double timeout_s, struct gloo_mesh **out, const void **block,
                           size_t *block_bytes);
/* blocks [world]: what each rank's open gave, all of the same size as this rank's. */
struct err *gloo_mesh_connect(struct gloo_mesh *m, const void *const *blocks);
/* Does all of transfers [world] (the own entry is not looked at) and waits for them. Empty
 * transfers do not go over the wire, unless `empty_too`: then a rank returns only when every other
 * rank has come. After a failure (ERR_ABORTED when a rank is gone, ERR_TIMEOUT) all connections
 * are closed, which aborts the other ranks. */
struct err *gloo_mesh_exchange(struct gloo_mesh *m, const struct gloo_transfer *transfers,
                               bool empty_too);
void gloo_mesh_destroy(struct gloo_mesh *m);

#ifdef __cplusplus
}
#endif

#endif
