/* Memory, queues and events: streams of CUDA that remember their first failure.
 *
 * A failure of a launch is kept at once. A failure on the device (a bad address, say) is CUDA's to
 * remember: it comes back from the next wait, and from every call after it. An index out of range
 * is left in the queue's fault word by the kernel that met it, and read when the queue is awaited.
 */
#include <stdlib.h>

#include "kernels/cuda/cuda.h"

struct kernel_event {
    cudaEvent_t event;
    struct err *failure;
};

static struct err *copy_of(const struct err *e)
{
    return e ? err_new(err_kind(e), "%s", err_message(e)) : NULL;
}

struct err *cuda_error(cudaError_t answer, const char *what)
{
    if (answer == cudaSuccess)
        return NULL;
    return err_new(answer == cudaErrorMemoryAllocation ? ERR_NO_MEMORY : ERR_INTERNAL,
                   "%s on the GPU: %s (%s)", what, cudaGetErrorString(answer),
                   cudaGetErrorName(answer));
}

void cuda_fail(struct kernel_queue *q, struct err *e)
{
    if (q->failure)
        err_free(e);
    else
        q->failure = e;
}

void cuda_check(struct kernel_queue *q, cudaError_t answer, const char *what)
{
    if (answer != cudaSuccess)
        cuda_fail(q, cuda_error(answer, what));
}

int cuda_multiprocessors(void)
{
    static int count; /* every thread would find the same */
    int device;
    if (!count &&
        (cudaGetDevice(&device) != cudaSuccess ||
         cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess))
        count = 1;
    return count;
}

/* ---- Memory ---- */

static struct err *no_memory_for(size_t bytes, const char *where, cudaError_t answer)
{
    cudaGetLastError(); /* what is told here is not to be told again by the next launch */
    if (answer == cudaErrorMemoryAllocation || answer == cudaErrorInvalidValue)
        return err_new(ERR_NO_MEMORY, "no memory %s for %zu bytes", where, bytes);
    return cuda_error(answer, "taking memory");
}

struct err *cuda_alloc(size_t bytes, void **out)
{
    *out = NULL;
    cudaError_t answer = cudaMalloc(out, bytes ? bytes : 1); /* 256-byte aligned */
    return answer == cudaSuccess ? NULL : no_memory_for(bytes, "on the GPU", answer);
}

void cuda_release(void *p)
{
    cudaFree(p);
}

struct err *cuda_host_alloc(size_t bytes, void **out)
{
    *out = NULL;
    cudaError_t answer = cudaMallocHost(out, bytes ? bytes : 1);
    return answer == cudaSuccess
               ? NULL
               : no_memory_for(bytes, "that the GPU can reach on the host", answer);
}

void cuda_host_release(void *p)
{
    cudaFreeHost(p);
}

void *cuda_scratch(struct kernel_queue *q, size_t bytes)
{
    if (bytes <= q->scratch_bytes)
        return q->scratch;
    cuda_check(q, cudaStreamSynchronize(q->stream), "waiting for work that uses scratch memory");
    cudaFree(q->scratch);
    q->scratch_bytes = 0;
    struct err *e = cuda_alloc(bytes, &q->scratch);
    if (e) {
        cuda_fail(q, err_wrap(e, "scratch memory of an operation"));
        return NULL;
    }
    q->scratch_bytes = bytes;
    return q->scratch;
}

/* ---- Queues ---- */

static struct err *fill_queue(struct kernel_queue *q)
{
    TRY(cuda_error(cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking),
                   "making a stream"));
    TRY(cuda_host_alloc(sizeof *q->fault, (void **)&q->fault));
    *q->fault = 0;
    return NULL;
}

struct err *cuda_queue_create(struct kernel_queue **out)
{
    struct kernel_queue *q = calloc(1, sizeof *q);
    if (!q)
        return err_no_memory();
    struct err *e = fill_queue(q);
    if (e)
        cuda_queue_destroy(q);
    else
        *out = q;
    return e;
}

void cuda_queue_destroy(struct kernel_queue *q)
{
    if (!q)
        return;
    if (q->stream)
        cudaStreamSynchronize(q->stream);
    cuda_matmul_plans_free(q->plans);
    cudaFree(q->scratch);
    cudaFreeHost((void *)q->fault);
    if (q->stream)
        cudaStreamDestroy(q->stream);
    err_free(q->failure);
    free(q);
}

static struct err *fault_sentence(unsigned long long fault)
{
    int index = (int)(uint32_t)fault;
    switch (fault >> 32) {
    case INDEX_GATHER:
        return err_new(ERR_INTERNAL, "gather_rows: row index %d is beyond the source's rows",
                       index);
    case INDEX_SCATTER:
        return err_new(ERR_INTERNAL,
                       "scatter_add_rows: row index %d is beyond the destination's rows", index);
    default:
        return err_new(ERR_INTERNAL, "cross_entropy: label %d is not a column of the logits",
                       index);
    }
}

struct err *cuda_queue_wait(struct kernel_queue *q)
{
    cuda_check(q, cudaStreamSynchronize(q->stream), "queued work");
    if (*q->fault)
        cuda_fail(q, fault_sentence(*q->fault));
    return copy_of(q->failure);
}

/* ---- Events ---- */

struct err *cuda_event_create(struct kernel_event **out)
{
    struct kernel_event *e = calloc(1, sizeof *e);
    if (!e)
        return err_no_memory();
    cudaError_t answer = cudaEventCreate(&e->event);
    if (answer != cudaSuccess) {
        free(e);
        return cuda_error(answer, "making an event");
    }
    *out = e;
    return NULL;
}

void cuda_event_destroy(struct kernel_event *e)
{
    if (!e)
        return;
    cudaEventDestroy(e->event);
    err_free(e->failure);
    free(e);
}

void cuda_event_record(struct kernel_event *e, struct kernel_queue *q)
{
    cuda_check(q, cudaEventRecord(e->event, q->stream), "recording an event");
    err_free(e->failure);
    e->failure = copy_of(q->failure);
}

void cuda_event_await(struct kernel_event *e, struct kernel_queue *q)
{
    cuda_check(q, cudaStreamWaitEvent(q->stream, e->event, 0), "awaiting an event");
    if (e->failure)
        cuda_fail(q, copy_of(e->failure));
}

double cuda_event_between_s(const struct kernel_event *begin, const struct kernel_event *end)
{
    float ms;
    if (cudaEventElapsedTime(&ms, begin->event, end->event) == cudaSuccess)
        return ms * 1e-3;
    cudaGetLastError(); /* nobody's failure */
    return 0;
}

/* ---- Bytes ---- */

static void transfer(struct kernel_queue *q, void *to, const void *from, size_t bytes,
                     const char *what)
{
    if (!q->failure && bytes)
        cuda_check(q, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, q->stream), what);
}

void cuda_upload(struct kernel_queue *q, void *device, const void *host, size_t bytes)
{
    transfer(q, device, host, bytes, "upload");
}

void cuda_download(struct kernel_queue *q, void *host, const void *device, size_t bytes)
{
    transfer(q, host, device, bytes, "download");
}

void cuda_fill_zero(struct kernel_queue *q, void *device, size_t bytes)
{
    if (!q->failure && bytes)
        cuda_check(q, cudaMemsetAsync(device, 0, bytes, q->stream), "fill_zero");
}
