/* Hopper's own instructions (PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor
 * copies", "mbarrier"), one small function each: barriers in shared memory, bulk copies of tensor
 * boxes, products by a warpgroup (four warps, 128 threads), registers moved between warpgroups.
 *
 * Operands in shared memory lie in panels of 64 bf16 columns: rows of 128 bytes, 16-byte pieces
 * swizzled over 8 rows, as a bulk copy with the 128-byte swizzle leaves them. Panels begin at
 * multiples of 1024 bytes. Machine code for sm_90a alone: inside HOPPER_CODE.
 */
#ifndef KERNELS_CUDA_HOPPER_CUH
#define KERNELS_CUDA_HOPPER_CUH

#include <cudaTypedefs.h>

#include "kernels/cuda/device.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_CODE 1
#else
#define HOPPER_CODE 0
#endif

constexpr int WARPGROUP = 128;
constexpr int PANEL = 64;         /* columns */
constexpr int PANEL_ROW = 128;    /* bytes */
constexpr int PANEL_GROUP = 1024; /* bytes of 8 rows, over which the swizzle goes */

/* The map of bulk copies of boxes [rows, one head, 64 columns] of t [n, H, d] in BF16, rows beyond
 * the last one as zeros. t is wide (is_wide). False: the driver refuses it. */
bool hopper_tensor_map(CUtensorMap *map, const struct tensor *t, unsigned rows);

#if HOPPER_CODE

__device__ inline uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- Barriers ---- */

__device__ inline void barrier_init(uint64_t *barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
                 "r"(arrivals)
                 : "memory");
}

/* After barrier_init, by the thread that called it; then the block meets. */
__device__ inline void barrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(uint64_t *barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

/* Arrives, and makes the phase wait for so many bytes of bulk copies. */
__device__ inline void barrier_expect(uint64_t *barrier, int bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
        "r"(bytes)
        : "memory");
}

/* Until the phase of this parity is over; the phase before the first one has parity 1. */
__device__ inline void barrier_wait(uint64_t *barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again%=;\n"
                 "}" ::"r"(shared_address(barrier)),
                 "r"(parity)
                 : "memory");
}

/* Named barriers of so many threads: 0 is __syncthreads' own. */
__device__ inline void named_sync(int name, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

__device__ inline void named_arrive(int name, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(name), "r"(threads) : "memory");
}

/* What this thread stored to shared memory is seen by products and bulk copies that follow. */
__device__ inline void async_proxy_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- Bulk copies ---- */

/* The box at (column, head, row) to `to`; its bytes arrive at the barrier. By one thread. */
__device__ inline void load_box(void *to, const CUtensorMap *map, uint64_t *barrier, int column,
                                int head, int row)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to)),
                 "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(head), "r"(row)
                 : "memory");
}

__device__ inline void prefetch_map(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* ---- Registers of a warpgroup ---- */

template <int COUNT> __device__ inline void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

template <int COUNT> __device__ inline void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* ---- Products ---- */

/* Describes an operand at p whose contraction runs along the rows of a panel (K-major): 16 columns
 * further is 32 bytes further. */
__device__ inline uint64_t operand_along_rows(const void *p)
{
    return (uint64_t)(shared_address(p) >> 4 & 0x3fff) | (uint64_t)1 << 16 |
           (uint64_t)(PANEL_GROUP >> 4) << 32 | (uint64_t)1 << 62;
}

/* An operand whose contraction runs down the rows (MN-major): 16 rows further is 2048 bytes
 * further. panel_bytes: from a panel to the next 64 columns. */
__device__ inline uint64_t operand_down_rows(const void *p, int panel_bytes)
{
    return (uint64_t)(shared_address(p) >> 4 & 0x3fff) | (uint64_t)(panel_bytes >> 4) << 16 |
           (uint64_t)(PANEL_GROUP >> 4) << 32 | (uint64_t)1 << 62;
}

/* Before the first product that reads registers or accumulators written by other instructions. */
__device__ inline void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void products_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Until at most PENDING of the groups committed are under way. */
template <int PENDING> __device__ inline void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Keeps the compiler from moving what reads or writes registers across this point. */
template <int N> __device__ inline void pin(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

#define HOPPER_OUT8(c, i)                                                                          \
    "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]),    \
        "+f"(c[i + 6]), "+f"(c[i + 7])
#define HOPPER_OUT32(c, i)                                                                         \
    HOPPER_OUT8(c, i), HOPPER_OUT8(c, i + 8), HOPPER_OUT8(c, i + 16), HOPPER_OUT8(c, i + 24)
#define HOPPER_NAMES32                                                                             \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "  \
    "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define HOPPER_NAMES64                                                                             \
    HOPPER_NAMES32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, " \
                   "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "   \
                   "%62, %63"

/* c [64, N] = a [64, 16] b [16, N] (+ c if add), a and b described. DOWN_A, DOWN_B: the operand is
 * one of operand_down_rows. c: N / 2 registers a thread; row 16 w + l / 4 (+ 8) and columns
 * 8 j + 2 (l % 4) (+ 1) of lane l in warp w are in c[4 j] and the next (4 j + 2 and the next). */
template <bool DOWN_A, bool DOWN_B>
__device__ inline void product(float (&c)[32], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " HOPPER_NAMES32
                 "}, %32, %33, p, 1, 1, %35, %36;\n}"
                 : HOPPER_OUT32(c, 0)
                 : "l"(a), "l"(b), "r"((int)add), "n"(DOWN_A), "n"(DOWN_B));
}

template <bool DOWN_A, bool DOWN_B>
__device__ inline void product(float (&c)[64], uint64_t a, uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " HOPPER_NAMES64
                 "}, %64, %65, p, 1, 1, %67, %68;\n}"
                 : HOPPER_OUT32(c, 0), HOPPER_OUT32(c, 32)
                 : "l"(a), "l"(b), "r"((int)add), "n"(DOWN_A), "n"(DOWN_B));
}

/* The same with a in registers: bf16 pairs of (row, columns) (0, 0), (8, 0), (0, 8), (8, 8) from
 * the lane's own, which is what 8 neighbouring accumulators of a product hold. */
template <bool DOWN_B>
__device__ inline void product(float (&c)[32], const uint32_t (&a)[4], uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " HOPPER_NAMES32
                 "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
                 : HOPPER_OUT32(c, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(DOWN_B));
}

template <bool DOWN_B>
__device__ inline void product(float (&c)[64], const uint32_t (&a)[4], uint64_t b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " HOPPER_NAMES64
                 "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
                 : HOPPER_OUT32(c, 0), HOPPER_OUT32(c, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add), "n"(DOWN_B));
}

/* Two values as a pair of bf16, the first one low. */
__device__ inline uint32_t bf16_pair(float low, float high)
{
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

#endif

#endif
