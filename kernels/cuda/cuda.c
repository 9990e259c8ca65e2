/* The table of the CUDA backend, and the two symbols by which kernels/load.c finds it. */
#include "kernels/cuda/cuda.h"

#include "kernels/load.h"

/* The kernels are built for this capability and newer ones. */
#define LEAST_MAJOR 8

static int threads(void)
{
    return 1;
}

static const struct kernels table = {
    .abi = KERNELS_ABI,
    .name = "cuda",
    .device = DEVICE_CUDA,
    .threads = threads,
    .alloc = cuda_alloc,
    .release = cuda_release,
    .host_alloc = cuda_host_alloc,
    .host_release = cuda_host_release,
    .queue_create = cuda_queue_create,
    .queue_destroy = cuda_queue_destroy,
    .queue_wait = cuda_queue_wait,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .event_await = cuda_event_await,
    .event_between_s = cuda_event_between_s,
    .upload = cuda_upload,
    .download = cuda_download,
    .copy = cuda_copy,
    .fill_zero = cuda_fill_zero,
    .add = cuda_add,
    .gather_rows = cuda_gather_rows,
    .scatter_add_rows = cuda_scatter_add_rows,
    .matmul = cuda_matmul,
    .bias_forward = cuda_bias_forward,
    .bias_backward = cuda_bias_backward,
    .rmsnorm_forward = cuda_rmsnorm_forward,
    .rmsnorm_backward = cuda_rmsnorm_backward,
    .rope = cuda_rope,
    .swiglu_forward = cuda_swiglu_forward,
    .swiglu_backward = cuda_swiglu_backward,
    .cross_entropy = cuda_cross_entropy,
    .sum_squares = cuda_sum_squares,
    .adamw = cuda_adamw,
    .fused_add_rmsnorm = cuda_add_rmsnorm,
    .fused_norm_rope = cuda_norm_rope,
};

static struct err *check_driver(void)
{
    int driver = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
        return err_new(ERR_NOT_FOUND,
                       "the CUDA backend needs NVIDIA's driver for CUDA %d.%d or "
                       "newer: this machine has none",
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    int devices = 0;
    cudaError_t answer = cudaGetDeviceCount(&devices);
    if (answer == cudaErrorInsufficientDriver)
        return err_new(ERR_NOT_FOUND,
                       "the CUDA backend needs NVIDIA's driver for CUDA %d.%d or newer: this "
                       "machine's is for CUDA %d.%d",
                       CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, driver / 1000,
                       driver % 1000 / 10);
    if (answer == cudaErrorNoDevice || (answer == cudaSuccess && devices == 0))
        return err_new(ERR_NOT_FOUND, "the CUDA backend finds no GPU: there is none, or "
                                      "CUDA_VISIBLE_DEVICES hides it");
    return cuda_error(answer, "looking for GPUs");
}

/* The process's GPU is the first one that it sees. */
static struct err *check_device(void)
{
    struct cudaDeviceProp device;
    TRY(cuda_error(cudaGetDeviceProperties(&device, 0), "asking for its properties"));
    if (device.major < LEAST_MAJOR)
        return err_new(ERR_INVALID,
                       "the GPU %s is of compute capability %d.%d, the CUDA backend needs %d.0 or "
                       "newer",
                       device.name, device.major, device.minor, LEAST_MAJOR);
    return cuda_error(cudaSetDevice(0), "opening the GPU");
}

KERNELS_PLUGIN_SYMBOL const int kernels_plugin_abi = KERNELS_ABI;

KERNELS_PLUGIN_SYMBOL struct err *kernels_plugin_open(const struct kernels **out)
{
    TRY(check_driver());
    TRY(check_device());
    TRY(cuda_matmul_open());
    *out = &table;
    return NULL;
}
