/* Memory, queues and events.
 *
 * An operation has happened when its call returns, so a queue only remembers what went wrong. A
 * queue that failed stays failed: what its operations should have written was not written, and
 * nothing later in it can be trusted. An event carries the failure of the queue that recorded it
 * to the queue that awaits it, for the same reason.
 */
#include "kernels/cpu/cpu.h"

#include <stdlib.h>

#include "daemon/base/clock.h"

#define ALIGNMENT 256

struct kernel_event {
    double time_s;
    struct err *failure;
};

static struct err *copy_of(const struct err *e)
{
    return e ? err_new(err_kind(e), "%s", err_message(e)) : NULL;
}

struct err *cpu_alloc(size_t bytes, void **out)
{
    *out = NULL;
    if (bytes > PTRDIFF_MAX - ALIGNMENT)
        return err_new(ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
    size_t rounded = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    *out = aligned_alloc(ALIGNMENT, rounded);
    return *out ? NULL : err_new(ERR_NO_MEMORY, "no memory for %zu bytes", bytes);
}

void cpu_release(void *p)
{
    free(p);
}

struct err *cpu_queue_create(struct kernel_queue **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? NULL : err_no_memory();
}

void cpu_queue_destroy(struct kernel_queue *q)
{
    if (!q)
        return;
    err_free(q->failure);
    free(q->scratch);
    free(q);
}

struct err *cpu_queue_wait(struct kernel_queue *q)
{
    return copy_of(q->failure);
}

void cpu_fail(struct kernel_queue *q, struct err *e)
{
    if (q->failure)
        err_free(e);
    else
        q->failure = e;
}

void *cpu_scratch(struct kernel_queue *q, size_t bytes)
{
    if (bytes <= q->scratch_bytes)
        return q->scratch;
    free(q->scratch);
    q->scratch_bytes = 0;
    struct err *e = cpu_alloc(bytes, &q->scratch);
    if (e) {
        cpu_fail(q, err_wrap(e, "scratch memory of an operation"));
        return NULL;
    }
    q->scratch_bytes = bytes;
    return q->scratch;
}

struct err *cpu_event_create(struct kernel_event **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? NULL : err_no_memory();
}

void cpu_event_destroy(struct kernel_event *e)
{
    if (!e)
        return;
    err_free(e->failure);
    free(e);
}

void cpu_event_record(struct kernel_event *e, struct kernel_queue *q)
{
    e->time_s = clock_s();
    err_free(e->failure);
    e->failure = copy_of(q->failure);
}

void cpu_event_await(struct kernel_event *e, struct kernel_queue *q)
{
    if (e->failure)
        cpu_fail(q, copy_of(e->failure));
}

double cpu_event_between_s(const struct kernel_event *begin, const struct kernel_event *end)
{
    return end->time_s - begin->time_s;
}
