/* The table of the CPU backend. */
#include "kernels/cpu/cpu.h"

#include <cblas.h>

static int threads(void)
{
    return openblas_get_num_threads();
}

static void upload(struct kernel_queue *q, void *device, const void *host, size_t bytes)
{
    cpu_transfer(q, device, host, bytes);
}

static void download(struct kernel_queue *q, void *host, const void *device, size_t bytes)
{
    cpu_transfer(q, host, device, bytes);
}

const struct kernels *kernels_cpu(void)
{
    static const struct kernels table = {
        .abi = KERNELS_ABI,
        .name = "cpu",
        .device = DEVICE_CPU,
        .threads = threads,
        .alloc = cpu_alloc,
        .release = cpu_release,
        .host_alloc = cpu_alloc,
        .host_release = cpu_release,
        .queue_create = cpu_queue_create,
        .queue_destroy = cpu_queue_destroy,
        .queue_wait = cpu_queue_wait,
        .event_create = cpu_event_create,
        .event_destroy = cpu_event_destroy,
        .event_record = cpu_event_record,
        .event_await = cpu_event_await,
        .event_between_s = cpu_event_between_s,
        .upload = upload,
        .download = download,
        .copy = cpu_copy,
        .fill_zero = cpu_fill_zero,
        .add = cpu_add,
        .gather_rows = cpu_gather_rows,
        .scatter_add_rows = cpu_scatter_add_rows,
        .matmul = cpu_matmul,
        .bias_forward = cpu_bias_forward,
        .bias_backward = cpu_bias_backward,
        .rmsnorm_forward = cpu_rmsnorm_forward,
        .rmsnorm_backward = cpu_rmsnorm_backward,
        .rope = cpu_rope,
        .swiglu_forward = cpu_swiglu_forward,
        .swiglu_backward = cpu_swiglu_backward,
        .attention_forward = cpu_attention_forward,
        .attention_delta = cpu_attention_delta,
        .attention_backward = cpu_attention_backward,
        .cross_entropy = cpu_cross_entropy,
        .sum_squares = cpu_sum_squares,
        .adamw = cpu_adamw,
    };
    return &table;
}
