#include "daemon/worker/comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "daemon/worker/comm/comm_engine.h"

void meeting_free(struct meeting_bytes *all, int world)
{
    for (int r = 0; r < world; r++) {
        free(all[r].data);
        all[r] = (struct meeting_bytes){0};
    }
}

/* Meets with everybody, and keeps what the members of the group posted. */
static struct err *group_exchange(void *user, const char *key, const void *data, size_t bytes,
                                  int world, double timeout_s, struct meeting_bytes *all)
{
    const struct meeting_group *g = user;
    if (world != g->n_members)
        return err_new(ERR_INVALID, "meeting \"%s\" of %d ranks in a group of %d", key, world,
                       g->n_members);
    struct meeting_bytes *whole = calloc((size_t)g->whole_world, sizeof *whole);
    if (!whole)
        return err_no_memory();
    struct err *e =
        g->whole->exchange(g->whole->user, key, data, bytes, g->whole_world, timeout_s, whole);
    for (int i = 0; !e && i < world; i++) {
        all[i] = whole[g->members[i]];
        whole[g->members[i]] = (struct meeting_bytes){0};
    }
    meeting_free(whole, g->whole_world);
    free(whole);
    return e;
}

struct meeting meeting_of_group(struct meeting_group *g)
{
    return (struct meeting){.exchange = group_exchange, .user = g};
}

void comm_destroy(struct comm *c)
{
    if (!c)
        return;
    err_free(c->failure);
    c->engine->destroy(c);
}

int comm_rank(const struct comm *c)
{
    return c->rank;
}

int comm_world(const struct comm *c)
{
    return c->world;
}

struct comm_counters comm_counters(const struct comm *c)
{
    return c->counters;
}

struct err *comm_failure(struct comm *c)
{
    if (!c->failure)
        return NULL;
    return err_new(err_kind(c->failure), "%s", err_message(c->failure));
}

/* Counts what an operation moved, or keeps why it failed. */
static void finish(struct comm *c, struct err *e, size_t sent_bytes, size_t received_bytes)
{
    c->failure = e;
    if (e)
        return;
    c->counters.sent_bytes += (int64_t)sent_bytes;
    c->counters.received_bytes += (int64_t)received_bytes;
}

static size_t to_peers(const struct comm *c, size_t bytes)
{
    return (size_t)(c->world - 1) * bytes;
}

void comm_all_gather(struct comm *c, struct kernel_queue *q, const void *send, void *recv,
                     size_t bytes)
{
    if (c->failure)
        return;
    finish(c, c->engine->all_gather(c, q, send, recv, bytes), to_peers(c, bytes),
           to_peers(c, bytes));
}

void comm_reduce_scatter(struct comm *c, struct kernel_queue *q, const float *send, float *recv,
                         size_t count, float *scratch)
{
    if (c->failure)
        return;
    size_t bytes = to_peers(c, count * sizeof(float));
    finish(c, c->engine->reduce_scatter(c, q, send, recv, count, scratch), bytes, bytes);
}

void comm_all_to_all(struct comm *c, struct kernel_queue *q, const void *send,
                     const size_t *send_bytes, void *recv, const size_t *recv_bytes)
{
    if (c->failure)
        return;
    size_t sent = 0, received = 0;
    for (int r = 0; r < c->world; r++) {
        sent += r == c->rank ? 0 : send_bytes[r];
        received += r == c->rank ? 0 : recv_bytes[r];
    }
    finish(c, c->engine->all_to_all(c, q, send, send_bytes, recv, recv_bytes), sent, received);
}

struct err *comm_sum(struct comm *c, double *values, size_t count)
{
    if (c->failure)
        return comm_failure(c);
    size_t bytes = to_peers(c, count * sizeof(double));
    finish(c, c->engine->sum(c, values, count), bytes, bytes);
    return comm_failure(c);
}

struct err *comm_barrier(struct comm *c)
{
    if (c->failure)
        return comm_failure(c);
    finish(c, c->engine->barrier(c), 0, 0);
    return comm_failure(c);
}
