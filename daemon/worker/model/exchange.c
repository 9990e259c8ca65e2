#include "daemon/worker/model/exchange.h"

#include <assert.h>
#include <string.h>

#include "daemon/base/clock.h"

struct err *exchange_create(const struct kernels *kernels, struct comm *group,
                            struct kernel_queue *compute, struct exchange *out)
{
    memset(out, 0, sizeof *out);
    out->kernels = kernels;
    out->group = group;
    out->compute = compute;
    assert(comm_world(group) <= SPEC_MAX_DEGREE);
    struct err *e = kernels->queue_create(&out->wire);
    if (!e)
        e = kernels->event_create(&out->packed);
    if (!e)
        e = kernels->event_create(&out->arrived);
    if (e)
        exchange_destroy(out);
    return e;
}

void exchange_destroy(struct exchange *x)
{
    if (x->arrived)
        x->kernels->event_destroy(x->arrived);
    if (x->packed)
        x->kernels->event_destroy(x->packed);
    if (x->wire)
        x->kernels->queue_destroy(x->wire);
    memset(x, 0, sizeof *x);
}

static size_t row_bytes(struct tensor t)
{
    return (size_t)t.shape[1] * dtype_size(t.dtype);
}

/* This rank's slot of a gathered buffer. */
static struct tensor own_slot(const struct exchange *x, const struct plan_kind *kind,
                              struct tensor remote)
{
    return tensor_rows(remote, comm_rank(x->group) * kind->gather_rows, kind->gather_rows);
}

/* Bytes that all_to_all moves for each rank: counts of rows by rank, times a row. */
static void to_bytes(const struct exchange *x, const int64_t *rows, size_t row, size_t *bytes)
{
    for (int r = 0; r < comm_world(x->group); r++)
        bytes[r] = (size_t)rows[r] * row;
}

static void begin_on_wire(struct exchange *x)
{
    x->kernels->event_record(x->packed, x->compute);
    x->kernels->event_await(x->packed, x->wire);
}

void exchange_forward_begin(struct exchange *x, const struct plan_kind *kind, struct tensor kv,
                            struct tensor packed_kv, struct tensor remote_kv)
{
    if (kind->exchange == EXCHANGE_NONE)
        return;
    struct tensor packed =
        kind->exchange == EXCHANGE_GATHER ? own_slot(x, kind, remote_kv) : packed_kv;
    int64_t at = 0;
    for (int i = 0; i < kind->n_send; i++) {
        const struct plan_range *range = &kind->send[i];
        x->kernels->copy(x->compute, tensor_rows(packed, at, range->length),
                         tensor_rows(kv, range->row, range->length));
        at += range->length;
    }
    begin_on_wire(x);
    double began = clock_s();
    if (kind->exchange == EXCHANGE_GATHER) {
        comm_all_gather(x->group, x->wire, packed.data, remote_kv.data,
                        (size_t)kind->gather_rows * row_bytes(kv));
    } else {
        size_t send[SPEC_MAX_DEGREE], recv[SPEC_MAX_DEGREE];
        to_bytes(x, kind->send_counts, row_bytes(kv), send);
        to_bytes(x, kind->recv_counts, row_bytes(kv), recv);
        comm_all_to_all(x->group, x->wire, packed.data, send, remote_kv.data, recv);
    }
    x->exposed_s += clock_s() - began;
    x->kernels->event_record(x->arrived, x->wire);
}

void exchange_forward_end(struct exchange *x, const struct plan_kind *kind)
{
    if (kind->exchange != EXCHANGE_NONE)
        x->kernels->event_await(x->arrived, x->compute);
}

void exchange_backward_begin(struct exchange *x, const struct plan_kind *kind,
                             struct tensor d_remote_kv, struct tensor d_packed_kv, float *reduce)
{
    if (kind->exchange == EXCHANGE_NONE)
        return;
    begin_on_wire(x);
    double began = clock_s();
    if (kind->exchange == EXCHANGE_GATHER) {
        comm_reduce_scatter(x->group, x->wire, d_remote_kv.data,
                            own_slot(x, kind, d_remote_kv).data,
                            (size_t)(kind->gather_rows * d_remote_kv.shape[1]), reduce);
    } else {
        size_t send[SPEC_MAX_DEGREE], recv[SPEC_MAX_DEGREE];
        to_bytes(x, kind->recv_counts, row_bytes(d_remote_kv), send);
        to_bytes(x, kind->send_counts, row_bytes(d_remote_kv), recv);
        comm_all_to_all(x->group, x->wire, d_remote_kv.data, send, d_packed_kv.data, recv);
    }
    x->exposed_s += clock_s() - began;
    x->kernels->event_record(x->arrived, x->wire);
}

void exchange_backward_end(struct exchange *x, const struct plan_kind *kind, struct tensor d_kv,
                           struct tensor d_remote_kv, struct tensor d_packed_kv)
{
    if (kind->exchange == EXCHANGE_NONE)
        return;
    x->kernels->event_await(x->arrived, x->compute);
    struct tensor packed =
        kind->exchange == EXCHANGE_GATHER ? own_slot(x, kind, d_remote_kv) : d_packed_kv;
    int64_t at = 0;
    for (int i = 0; i < kind->n_send; i++) {
        const struct plan_range *range = &kind->send[i];
        x->kernels->add(x->compute, tensor_rows(d_kv, range->row, range->length),
                        tensor_rows(packed, at, range->length), 1.0f);
        at += range->length;
    }
}
