#include "kernels/cuda/hopper.cuh"

/* The driver's function, found through the runtime: nothing links to the driver's library. */
static PFN_cuTensorMapEncodeTiled_v12000 encoder(void)
{
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return NULL;
    return (PFN_cuTensorMapEncodeTiled_v12000)f;
}

bool hopper_tensor_map(CUtensorMap *map, const struct tensor *t, unsigned rows)
{
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = encoder();
    assert(t->dims == 3 && t->dtype == DTYPE_BF16 && t->shape[2] % PANEL == 0);
    cuuint64_t shape[3] = {(cuuint64_t)t->shape[2], (cuuint64_t)t->shape[1],
                           (cuuint64_t)t->shape[0]};
    cuuint64_t bytes[2] = {(cuuint64_t)t->stride[1] * sizeof(bf16),
                           (cuuint64_t)t->stride[0] * sizeof(bf16)};
    cuuint32_t box[3] = {PANEL, 1, rows}, step[3] = {1, 1, 1};
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, t->data, shape, bytes, box,
                            step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
