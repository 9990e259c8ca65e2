#include "daemon/worker/optim/zero1.h"

#include <math.h>
#include <stdlib.h>

struct zero1 {
    const struct kernels *kernels;
    struct comm *world;
    const struct parameters *parameters;
    struct kernel_queue *queue;
    void *weights; /* flat, of dtype */
    enum dtype dtype;
    float *gradients; /* flat */
    int64_t shard;    /* elements */
    float *master;    /* [shard], the own ones; in `weights` where they are F32 */
    float *m, *v;     /* [shard] */
    float *scratch;   /* [world, shard] */
    float *sum;       /* [1] on the device */
};

int64_t zero1_flat_count(const struct parameters *parameters, int world)
{
    return (parameters->count + world - 1) / world * world;
}

/* This rank's shard of a flat buffer. */
static void *own(const struct zero1 *z, void *flat, enum dtype dtype)
{
    return (char *)flat + (size_t)(z->shard * comm_rank(z->world)) * dtype_size(dtype);
}

static float *own_gradients(const struct zero1 *z)
{
    return own(z, z->gradients, DTYPE_F32);
}

static bool has_master(const struct zero1 *z)
{
    return z->dtype != DTYPE_F32;
}

static struct err *take(struct zero1 *z)
{
    const struct kernels *k = z->kernels;
    size_t shard_bytes = (size_t)z->shard * sizeof(float);
    size_t world = (size_t)comm_world(z->world);
    TRY(k->queue_create(&z->queue));
    if (has_master(z))
        TRY(k->alloc(shard_bytes, (void **)&z->master));
    else
        z->master = own(z, z->weights, DTYPE_F32);
    TRY(k->alloc(shard_bytes, (void **)&z->m));
    TRY(k->alloc(shard_bytes, (void **)&z->v));
    TRY(k->alloc(sizeof(float), (void **)&z->sum));
    if (world > 1)
        TRY(k->alloc(shard_bytes * world, (void **)&z->scratch));
    k->fill_zero(z->queue, z->m, shard_bytes);
    k->fill_zero(z->queue, z->v, shard_bytes);
    return k->queue_wait(z->queue);
}

struct err *zero1_create(const struct kernels *kernels, struct comm *world,
                         const struct parameters *parameters, void *weights, enum dtype dtype,
                         float *gradients, struct zero1 **out)
{
    struct zero1 *z = calloc(1, sizeof *z);
    if (!z)
        return err_no_memory();
    z->kernels = kernels;
    z->world = world;
    z->parameters = parameters;
    z->weights = weights;
    z->dtype = dtype;
    z->gradients = gradients;
    z->shard = zero1_flat_count(parameters, comm_world(world)) / comm_world(world);
    struct err *e = take(z);
    if (e)
        zero1_destroy(z);
    else
        *out = z;
    return e;
}

void zero1_destroy(struct zero1 *z)
{
    if (!z)
        return;
    void *blocks[] = {z->m, z->v, z->sum, z->scratch, has_master(z) ? z->master : NULL};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (blocks[i])
            z->kernels->release(blocks[i]);
    if (z->queue)
        z->kernels->queue_destroy(z->queue);
    free(z);
}

size_t zero1_memory_bytes(const struct zero1 *z)
{
    size_t world = (size_t)comm_world(z->world);
    return (size_t)z->shard * sizeof(float) * (2 + has_master(z) + (world > 1 ? world : 0));
}

static struct err *wait(struct zero1 *z)
{
    TRY(z->kernels->queue_wait(z->queue));
    return comm_failure(z->world);
}

struct err *zero1_reduce(struct zero1 *z)
{
    comm_reduce_scatter(z->world, z->queue, z->gradients, own_gradients(z), (size_t)z->shard,
                        z->scratch);
    return wait(z);
}

struct err *zero1_norm(struct zero1 *z, double *norm)
{
    const struct kernels *k = z->kernels;
    float squares = 0;
    k->fill_zero(z->queue, z->sum, sizeof *z->sum);
    k->sum_squares(z->queue, tensor_1d(z->sum, DTYPE_F32, k->device, 1),
                   tensor_1d(own_gradients(z), DTYPE_F32, k->device, z->shard));
    k->download(z->queue, &squares, z->sum, sizeof squares);
    TRY(k->queue_wait(z->queue));
    double total = squares;
    TRY(comm_sum(z->world, &total, 1));
    *norm = sqrt(total);
    return NULL;
}

/* Updates the part of one parameter that lies in this rank's shard. */
static void update_part(struct zero1 *z, const struct parameter *p, const struct adamw *options)
{
    int64_t shard_begin = z->shard * comm_rank(z->world), shard_end = shard_begin + z->shard;
    int64_t begin = p->offset > shard_begin ? p->offset : shard_begin;
    int64_t end = p->offset + p->count < shard_end ? p->offset + p->count : shard_end;
    if (begin >= end)
        return;
    struct adamw o = *options;
    if (p->dims < 2)
        o.weight_decay = 0;
    const struct kernels *k = z->kernels;
    int64_t n = end - begin, in_shard = begin - shard_begin;
    struct tensor copy = {0};
    if (has_master(z))
        copy = tensor_1d((char *)z->weights + (size_t)begin * dtype_size(z->dtype), z->dtype,
                         k->device, n);
    k->adamw(z->queue, tensor_1d(z->master + in_shard, DTYPE_F32, k->device, n),
             tensor_1d(z->m + in_shard, DTYPE_F32, k->device, n),
             tensor_1d(z->v + in_shard, DTYPE_F32, k->device, n),
             tensor_1d(z->gradients + begin, DTYPE_F32, k->device, n), copy, &o);
}

static void gather_weights(struct zero1 *z)
{
    comm_all_gather(z->world, z->queue, own(z, z->weights, z->dtype), z->weights,
                    (size_t)z->shard * dtype_size(z->dtype));
}

/* Makes the weights of master weights that somebody wrote. */
static void spread_master(struct zero1 *z)
{
    enum device device = z->kernels->device;
    if (has_master(z))
        z->kernels->copy(z->queue,
                         tensor_1d(own(z, z->weights, z->dtype), z->dtype, device, z->shard),
                         tensor_1d(z->master, DTYPE_F32, device, z->shard));
    gather_weights(z);
}

struct err *zero1_update(struct zero1 *z, const struct adamw *options)
{
    for (int i = 0; i < z->parameters->n; i++)
        update_part(z, &z->parameters->items[i], options);
    gather_weights(z);
    return wait(z);
}

void zero1_range(const struct zero1 *z, int64_t *begin, int64_t *count)
{
    *begin = z->shard * comm_rank(z->world);
    *count = z->shard;
}

struct err *zero1_save(struct zero1 *z, float *weights, float *m, float *v)
{
    const struct kernels *k = z->kernels;
    size_t bytes = (size_t)z->shard * sizeof(float);
    k->download(z->queue, weights, z->master, bytes);
    k->download(z->queue, m, z->m, bytes);
    k->download(z->queue, v, z->v, bytes);
    return k->queue_wait(z->queue);
}

struct err *zero1_load(struct zero1 *z, const float *weights, const float *m, const float *v)
{
    const struct kernels *k = z->kernels;
    size_t bytes = (size_t)z->shard * sizeof(float);
    k->upload(z->queue, z->master, weights, bytes);
    k->upload(z->queue, z->m, m, bytes);
    k->upload(z->queue, z->v, v, bytes);
    spread_master(z);
    return wait(z);
}

float *zero1_master(struct zero1 *z)
{
    return z->master;
}

struct err *zero1_gather_weights(struct zero1 *z)
{
    spread_master(z);
    return wait(z);
}

struct err *zero1_gather_gradients(struct zero1 *z)
{
    comm_all_gather(z->world, z->queue, own_gradients(z), z->gradients,
                    (size_t)z->shard * sizeof(float));
    return wait(z);
}
