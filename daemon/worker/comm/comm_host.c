/* Collectives over host memory, for the engines self (no mesh) and gloo. Each is one exchange: a
 * message to and from each other rank, all at once, and a local copy or sum. So every byte of
 * payload crosses the wire once, and a sum is taken in rank order by whoever needs it. */
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/comm/comm_engine.h"
#include "daemon/worker/comm/comm_gloo.h"

struct host_comm {
    struct comm base;
    struct gloo_mesh *mesh; /* NULL for one rank */
    struct gloo_transfer transfers[];
};

static struct host_comm *host(struct comm *c)
{
    return (struct host_comm *)c;
}

/* Does what transfers say; the own entry is a copy, which may be from a place to itself. */
static struct err *exchange(struct comm *c)
{
    const struct gloo_transfer *own = &host(c)->transfers[c->rank];
    if (own->send != own->recv && own->recv_bytes)
        memmove(own->recv, own->send, own->recv_bytes);
    if (!host(c)->mesh)
        return NULL;
    return gloo_mesh_exchange(host(c)->mesh, host(c)->transfers, false);
}

static struct err *all_gather(struct comm *c, struct kernel_queue *q, const void *send, void *recv,
                              size_t bytes)
{
    (void)q;
    for (int r = 0; r < c->world; r++)
        host(c)->transfers[r] = (struct gloo_transfer){
            .send = send,
            .send_bytes = bytes,
            .recv = (char *)recv + (size_t)r * bytes,
            .recv_bytes = bytes,
        };
    return exchange(c);
}

static struct err *all_to_all(struct comm *c, struct kernel_queue *q, const void *send,
                              const size_t *send_bytes, void *recv, const size_t *recv_bytes)
{
    (void)q;
    size_t sent = 0, received = 0;
    for (int r = 0; r < c->world; r++) {
        host(c)->transfers[r] = (struct gloo_transfer){
            .send = (const char *)send + sent,
            .send_bytes = send_bytes[r],
            .recv = (char *)recv + received,
            .recv_bytes = recv_bytes[r],
        };
        sent += send_bytes[r];
        received += recv_bytes[r];
    }
    return exchange(c);
}

/* Adds up a stretch at a time, so that recv may be one of the parts. */
static struct err *reduce_scatter(struct comm *c, struct kernel_queue *q, const float *send,
                                  float *recv, size_t count, float *scratch)
{
    (void)q;
    size_t bytes = count * sizeof *send;
    if (c->world == 1 && recv == send) /* the sum is there, whatever memory it is in */
        return NULL;
    for (int r = 0; r < c->world; r++)
        host(c)->transfers[r] = (struct gloo_transfer){
            .send = send + (size_t)r * count,
            .send_bytes = bytes,
            .recv = scratch + (size_t)r * count,
            .recv_bytes = r == c->rank ? 0 : bytes,
        };
    struct err *e = exchange(c);
    if (e)
        return e;
    enum { STRETCH = 2048 };
    float sum[STRETCH];
    for (size_t begin = 0; begin < count; begin += STRETCH) {
        size_t n = count - begin < STRETCH ? count - begin : STRETCH;
        for (int r = 0; r < c->world; r++) {
            const float *part = (r == c->rank ? send : scratch) + (size_t)r * count + begin;
            for (size_t i = 0; i < n; i++)
                sum[i] = r ? sum[i] + part[i] : part[i];
        }
        memcpy(recv + begin, sum, n * sizeof *sum);
    }
    return NULL;
}

static struct err *sum_values(struct comm *c, double *values, size_t count)
{
    double *all = malloc((size_t)c->world * count * sizeof *all + 1);
    if (!all)
        return err_no_memory();
    struct err *e = all_gather(c, NULL, values, all, count * sizeof *values);
    for (size_t i = 0; !e && i < count; i++) {
        double sum = all[i];
        for (int r = 1; r < c->world; r++)
            sum += all[(size_t)r * count + i];
        values[i] = sum;
    }
    free(all);
    return e;
}

static struct err *barrier(struct comm *c)
{
    if (!host(c)->mesh)
        return NULL;
    memset(host(c)->transfers, 0, (size_t)c->world * sizeof *host(c)->transfers);
    return gloo_mesh_exchange(host(c)->mesh, host(c)->transfers, true);
}

static void destroy(struct comm *c)
{
    gloo_mesh_destroy(host(c)->mesh);
    free(c);
}

static const struct comm_engine host_engine = {
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .all_to_all = all_to_all,
    .sum = sum_values,
    .barrier = barrier,
    .destroy = destroy,
};

static struct host_comm *create(int rank, int world)
{
    struct host_comm *h = calloc(1, sizeof *h + (size_t)world * sizeof *h->transfers);
    if (h)
        h->base = (struct comm){.engine = &host_engine, .rank = rank, .world = world};
    return h;
}

struct err *comm_create_self(struct comm **out)
{
    struct host_comm *h = create(0, 1);
    if (!h)
        return err_no_memory();
    *out = &h->base;
    return NULL;
}

/* One meeting, in which each rank posts the addresses where it listens for the others. */
static struct err *meet(const struct meeting *meeting, const char *name, struct host_comm *h,
                        const char *address, double timeout_s)
{
    int world = h->base.world;
    const void *block;
    size_t block_bytes;
    TRY(gloo_mesh_open(name, h->base.rank, world, address, timeout_s, &h->mesh, &block,
                       &block_bytes));
    char key[128];
    snprintf(key, sizeof key, "gloo/%s", name);
    struct meeting_bytes *all = calloc((size_t)world, sizeof *all);
    const void **blocks = calloc((size_t)world, sizeof *blocks);
    struct err *e = all && blocks ? NULL : err_no_memory();
    if (!e)
        e = meeting->exchange(meeting->user, key, block, block_bytes, world, timeout_s, all);
    for (int r = 0; !e && r < world; r++) {
        blocks[r] = all[r].data;
        if (all[r].bytes != block_bytes)
            e = err_new(ERR_INVALID, "rank %d posted %zu bytes at meeting \"%s\" instead of %zu", r,
                        all[r].bytes, key, block_bytes);
    }
    if (!e)
        e = gloo_mesh_connect(h->mesh, blocks);
    if (all)
        meeting_free(all, world);
    free(all);
    free(blocks);
    return e;
}

struct err *comm_create_gloo(const struct meeting *meeting, const char *name, int rank, int world,
                             const char *address, double timeout_s, struct comm **out)
{
    if (world < 1 || rank < 0 || rank >= world)
        return err_new(ERR_INVALID, "communicator \"%s\": rank %d of %d", name, rank, world);
    /* Gloo writes to sockets that a dead peer has closed. */
    signal(SIGPIPE, SIG_IGN);
    struct host_comm *h = create(rank, world);
    if (!h)
        return err_no_memory();
    if (world > 1) {
        struct err *e = meet(meeting, name, h, address, timeout_s);
        if (e) {
            comm_destroy(&h->base);
            return e;
        }
    }
    *out = &h->base;
    return NULL;
}
