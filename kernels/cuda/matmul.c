/* Matrix products through cuBLASLt.
 *
 * A row-major product c = op(a) op(b) is the column-major c^T = op(b)^T op(a)^T of the same memory,
 * so b comes first. What the library's heuristics choose for a shape is kept in the queue, in a
 * table of plans; a queue has a workspace for its products, taken at the first one. F32 products
 * are true fp32, never tf32.
 */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

/* What NVIDIA recommends for Hopper. */
#define WORKSPACE_BYTES ((size_t)32 << 20)
#define PLANS 512 /* a power of two */
#define PROBES 8
#define ALIGNMENT 16 /* as much as the library asks for */

struct plan_key {
    int64_t n, m, inner;
    int64_t lda, ldb, ldc;
    int32_t c_dtype, dtype;
    uint8_t transpose_a, transpose_b;
    uint8_t alignment_a, alignment_b, alignment_c, beta; /* beta: whether c is read */
    uint8_t used, unused;
};

struct plan {
    struct plan_key key;
    cublasLtMatmulAlgo_t algorithm;
};

struct matmul_plans {
    void *workspace;
    struct plan plans[PLANS];
};

static cublasLtHandle_t library;

static struct err *library_error(cublasStatus_t status, const char *what)
{
    if (status == CUBLAS_STATUS_SUCCESS)
        return NULL;
    return err_new(status == CUBLAS_STATUS_ALLOC_FAILED ? ERR_NO_MEMORY : ERR_INTERNAL,
                   "%s: cuBLASLt: %s", what, cublasLtGetStatusString(status));
}

struct err *cuda_matmul_open(void)
{
    return library ? NULL : library_error(cublasLtCreate(&library), "matmul");
}

void cuda_matmul_plans_free(struct matmul_plans *plans)
{
    if (!plans)
        return;
    cudaFree(plans->workspace);
    free(plans);
}

static struct err *take_plans(struct kernel_queue *q)
{
    if (q->plans)
        return NULL;
    struct matmul_plans *plans = calloc(1, sizeof *plans);
    if (!plans)
        return err_no_memory();
    struct err *e = cuda_alloc(WORKSPACE_BYTES, &plans->workspace);
    if (e) {
        free(plans);
        return err_wrap(e, "workspace of matrix products");
    }
    q->plans = plans;
    return NULL;
}

/* ---- What the library is told ---- */

/* The descriptions of a product, made anew for each: they are structs on the stack. */
struct description {
    cublasLtMatmulDescOpaque_t product;
    cublasLtMatrixLayoutOpaque_t a, b, c; /* c also where the result goes */
};

static cudaDataType_t type_of(int32_t dtype)
{
    return dtype == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static cublasStatus_t layout(cublasLtMatrixLayoutOpaque_t *out, int32_t dtype, int64_t rows,
                             int64_t columns, int64_t stride)
{
    /* Row-major [rows, columns] is column-major [columns, rows]. */
    return cublasLtMatrixLayoutInit(out, type_of(dtype), (uint64_t)columns, (uint64_t)rows, stride);
}

static cublasStatus_t describe(const struct plan_key *k, struct description *out)
{
    cublasOperation_t first = k->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = k->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasStatus_t s = cublasLtMatmulDescInit(&out->product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    if (!s)
        s = cublasLtMatmulDescSetAttribute(&out->product, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                           sizeof first);
    if (!s)
        s = cublasLtMatmulDescSetAttribute(&out->product, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                           sizeof second);
    if (!s)
        s = layout(&out->a, k->dtype, k->transpose_a ? k->inner : k->n,
                   k->transpose_a ? k->n : k->inner, k->lda);
    if (!s)
        s = layout(&out->b, k->dtype, k->transpose_b ? k->m : k->inner,
                   k->transpose_b ? k->inner : k->m, k->ldb);
    if (!s)
        s = layout(&out->c, k->c_dtype, k->n, k->m, k->ldc);
    return s;
}

static cublasStatus_t prefer(cublasLtMatmulPreferenceOpaque_t *out, const struct plan_key *k)
{
    size_t workspace = WORKSPACE_BYTES;
    /* Partial sums over the inner dimension stay fp32, and are added in fixed order. */
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        uint32_t value;
    } alignments[] = {
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, k->alignment_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, k->alignment_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, k->alignment_c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, k->alignment_c},
    };
    cublasStatus_t s = cublasLtMatmulPreferenceInit(out);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                 &workspace, sizeof workspace);
    if (!s)
        s = cublasLtMatmulPreferenceSetAttribute(out, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                 &reductions, sizeof reductions);
    for (size_t i = 0; !s && i < sizeof alignments / sizeof *alignments; i++)
        s = cublasLtMatmulPreferenceSetAttribute(out, alignments[i].name, &alignments[i].value,
                                                 sizeof alignments[i].value);
    return s;
}

static cublasStatus_t choose(const struct plan_key *k, struct description *d,
                             cublasLtMatmulAlgo_t *out)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    cublasStatus_t s = prefer(&preference, k);
    if (!s)
        s = cublasLtMatmulAlgoGetHeuristic(library, &d->product, &d->b, &d->a, &d->c, &d->c,
                                           &preference, 1, &result, &found);
    if (!s && !found)
        s = CUBLAS_STATUS_NOT_SUPPORTED;
    if (!s)
        *out = result.algo;
    return s;
}

/* ---- Plans ---- */

static uint64_t hash(const struct plan_key *k)
{
    uint64_t words[sizeof *k / sizeof(uint64_t)], h = 0;
    _Static_assert(sizeof *k % sizeof(uint64_t) == 0, "a key has no padding to hash");
    memcpy(words, k, sizeof *k);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        h = (h ^ words[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

/* The plan of a key; where there is none yet, a free or else the last place to put it, whose key
 * differs. */
static struct plan *place_of(struct matmul_plans *plans, const struct plan_key *k)
{
    uint64_t h = hash(k);
    struct plan *p = NULL;
    for (int i = 0; i < PROBES; i++) {
        p = &plans->plans[(h + (uint64_t)i) % PLANS];
        if (!p->key.used || !memcmp(&p->key, k, sizeof *k))
            break;
    }
    return p;
}

static uint8_t alignment_of(const void *p)
{
    uint8_t alignment = ALIGNMENT;
    while ((uintptr_t)p % alignment)
        alignment /= 2;
    return alignment;
}

static int64_t leading(const struct tensor *t)
{
    int64_t least = t->shape[1] > 1 ? t->shape[1] : 1;
    return t->shape[0] > 1 ? t->stride[0] : least;
}

static cublasStatus_t multiply(struct kernel_queue *q, const struct plan_key *key,
                               const struct tensor *c, const struct tensor *a,
                               const struct tensor *b, float alpha, float beta)
{
    struct description d;
    cublasStatus_t s = describe(key, &d);
    struct plan *plan = place_of(q->plans, key);
    if (!s && memcmp(&plan->key, key, sizeof *key)) {
        s = choose(key, &d, &plan->algorithm);
        plan->key = *key;
        plan->key.used = s == CUBLAS_STATUS_SUCCESS;
    }
    if (!s)
        s = cublasLtMatmul(library, &d.product, &alpha, b->data, &d.b, a->data, &d.a, &beta,
                           c->data, &d.c, c->data, &d.c, &plan->algorithm, q->plans->workspace,
                           WORKSPACE_BYTES, q->stream);
    return s;
}

static void assert_matrix(const struct tensor *t)
{
    assert(t->device == DEVICE_CUDA && t->dims == 2 && t->stride[1] == 1);
    assert(t->dtype == DTYPE_F32 || t->dtype == DTYPE_BF16);
    (void)t;
}

void cuda_matmul(struct kernel_queue *q, struct tensor c, struct tensor a, bool transpose_a,
                 struct tensor b, bool transpose_b, float alpha, float beta)
{
    assert_matrix(&c);
    assert_matrix(&a);
    assert_matrix(&b);
    assert(a.dtype == b.dtype && (c.dtype == a.dtype || c.dtype == DTYPE_F32));
    struct plan_key key = {
        .n = c.shape[0],
        .m = c.shape[1],
        .inner = a.shape[transpose_a ? 0 : 1],
        .lda = leading(&a),
        .ldb = leading(&b),
        .ldc = leading(&c),
        .c_dtype = (int32_t)c.dtype,
        .dtype = (int32_t)a.dtype,
        .transpose_a = transpose_a,
        .transpose_b = transpose_b,
        .alignment_a = alignment_of(a.data),
        .alignment_b = alignment_of(b.data),
        .alignment_c = alignment_of(c.data),
        .beta = beta != 0,
        .used = 1,
    };
    assert(a.shape[transpose_a ? 1 : 0] == key.n);
    assert(b.shape[transpose_b ? 1 : 0] == key.inner && b.shape[transpose_b ? 0 : 1] == key.m);
    if (q->failure || key.n == 0 || key.m == 0)
        return;
    if (key.inner == 0) {
        cuda_scale(q, c, beta);
        return;
    }
    struct err *e = take_plans(q);
    if (!e)
        e = library_error(multiply(q, &key, &c, &a, &b, alpha, beta), "matmul");
    if (e)
        cuda_fail(q, e);
}
