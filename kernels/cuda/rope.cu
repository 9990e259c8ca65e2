/* Rotary position embedding, alone in place and behind the per-head RMSNorm.
 *
 * A block takes some rows with all their heads: it computes the cosines and sines of the rows'
 * positions once, into shared memory, and every head uses them. A team of lanes holds a head in
 * registers, each lane the same elements of both halves, so that a rotation needs no exchange.
 * Angles are products in fp32, as the models were trained with; cosine and sine are exact to an ulp
 * or two for angles of any size.
 */
#include "kernels/cuda/device.cuh"

template <class T> struct rope_arguments {
    rows_of<T> y;
    rows_of<const T> x; /* rows are heads: row i * heads + h */
    rows_of<float> rstd;
    const T *w; /* NORM */
    const int32_t *positions;
    const float *frequencies; /* [half] */
    int64_t rows;
    int heads, half;
    int lanes; /* of a team: a power of two */
    int rows_a_block;
    float eps, sign; /* of the sines */
};

/* Halves of up to lanes x K x V elements. */
template <class T, int V, int K, bool NORM>
__global__ void __launch_bounds__(BLOCK) rope_kernel(const rope_arguments<T> a)
{
    extern __shared__ float2 turns[]; /* [rows_a_block, half] */
    int64_t first = (int64_t)blockIdx.x * a.rows_a_block;
    int rows = a.rows - first < a.rows_a_block ? (int)(a.rows - first) : a.rows_a_block;
    for (int i = threadIdx.x; i < rows * a.half; i += BLOCK) {
        float cosine, sine;
        sincosf((float)a.positions[first + i / a.half] * a.frequencies[i % a.half], &sine, &cosine);
        turns[i] = make_float2(cosine, a.sign * sine);
    }
    __syncthreads();
    int lane = threadIdx.x % a.lanes, teams = BLOCK / a.lanes, heads = rows * a.heads;
    for (int at = 0; at < heads; at += teams) {
        int head = at + threadIdx.x / a.lanes;
        bool there = head < heads;
        vec<T, V> low[K], high[K];
        float squares = 0, rstd = 1;
        const T *x = there ? a.x.at(first * a.heads + head) : nullptr;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * a.lanes) * V;
            if (!there || j >= a.half)
                continue;
            low[k] = load<T, V>(x + j);
            high[k] = load<T, V>(x + a.half + j);
#pragma unroll
            for (int i = 0; NORM && i < V; i++)
                squares +=
                    f32(low[k].x[i]) * f32(low[k].x[i]) + f32(high[k].x[i]) * f32(high[k].x[i]);
        }
        if constexpr (NORM) {
            squares = lanes_sum(squares, a.lanes);
            rstd = 1.0f / sqrtf(squares / (float)(2 * a.half) + a.eps);
            if (there && lane == 0)
                *a.rstd.at(first * a.heads + head) = rstd;
        }
        if (!there)
            continue;
        T *y = a.y.at(first * a.heads + head);
        const float2 *turn = turns + head / a.heads * a.half;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int j = (lane + k * a.lanes) * V;
            if (j >= a.half)
                continue;
            vec<T, V> w_low, w_high;
            if constexpr (NORM) {
                w_low = load<T, V>(a.w + j);
                w_high = load<T, V>(a.w + a.half + j);
            }
#pragma unroll
            for (int i = 0; i < V; i++) {
                float p = f32(low[k].x[i]), q = f32(high[k].x[i]);
                if constexpr (NORM) {
                    p *= rstd * f32(w_low.x[i]);
                    q *= rstd * f32(w_high.x[i]);
                }
                float2 t = turn[j + i];
                low[k].x[i] = rounded<T>(p * t.x - q * t.y);
                high[k].x[i] = rounded<T>(q * t.x + p * t.y);
            }
            store(y + j, low[k]);
            store(y + a.half + j, high[k]);
        }
    }
}

/* Heads of up to 2 x WARP x ANY elements where they are not aligned. */
constexpr int ANY = 16;

template <class T, bool NORM>
static void launch(struct kernel_queue *q, rope_arguments<T> a, bool wide, const char *what)
{
    if (q->failure || a.rows == 0 || a.heads == 0 || a.half == 0)
        return;
    wide = wide && a.half % WIDE == 0 && a.half <= WARP * WIDE;
    assert(wide || a.half <= WARP * ANY);
    a.lanes = wide ? 1 : WARP;
    while (a.lanes < WARP && a.lanes * WIDE < a.half)
        a.lanes *= 2;
    int teams = BLOCK / a.lanes;
    a.rows_a_block = teams > a.heads ? teams / a.heads : 1;
    int64_t blocks = (a.rows + a.rows_a_block - 1) / a.rows_a_block;
    assert(blocks <= INT32_MAX);
    size_t shared = (size_t)(a.rows_a_block * a.half) * sizeof(float2);
    if (wide)
        rope_kernel<T, WIDE, 1, NORM><<<(unsigned)blocks, BLOCK, shared, q->stream>>>(a);
    else
        rope_kernel<T, 1, ANY, NORM><<<(unsigned)blocks, BLOCK, shared, q->stream>>>(a);
    cuda_check(q, cudaGetLastError(), what);
}

static void assert_rope(const struct tensor *x, const struct tensor *positions,
                        const struct tensor *inv_freq)
{
    assert_compute(x, 3);
    assert_dtype(positions, 1, DTYPE_I32);
    assert_dtype(inv_freq, 1, DTYPE_F32);
    assert(positions->shape[0] == x->shape[0] && x->shape[2] == 2 * inv_freq->shape[0]);
    assert(x->shape[1] <= INT16_MAX);
    (void)positions, (void)inv_freq;
}

template <class T>
static rope_arguments<T> arguments_of(const struct tensor *y, const struct tensor *x,
                                      const struct tensor *positions, const struct tensor *inv_freq)
{
    rope_arguments<T> a = {};
    a.y = rows_in<T>(y);
    a.x = rows_in<const T>(x);
    a.positions = (const int32_t *)positions->data;
    a.frequencies = (const float *)inv_freq->data;
    a.rows = x->shape[0];
    a.heads = (int)x->shape[1];
    a.half = (int)inv_freq->shape[0];
    a.sign = 1.0f;
    return a;
}

void cuda_rope(struct kernel_queue *q, struct tensor x, struct tensor positions,
               struct tensor inv_freq, bool inverse)
{
    assert_rope(&x, &positions, &inv_freq);
    with_compute(x.dtype, [&](auto t) {
        using T = decltype(t);
        rope_arguments<T> a = arguments_of<T>(&x, &x, &positions, &inv_freq);
        a.sign = inverse ? -1.0f : 1.0f;
        launch<T, false>(q, a, is_wide(&x), "rope");
    });
}

void cuda_norm_rope(struct kernel_queue *q, struct tensor y, struct tensor rstd, struct tensor x,
                    struct tensor w, float eps, struct tensor positions, struct tensor inv_freq)
{
    assert_rope(&x, &positions, &inv_freq);
    assert(y.dtype == x.dtype && same_shape(&y, &x));
    bool wide = is_wide(&x) && is_wide(&y);
    if (w.data) {
        assert_dtype(&w, 1, x.dtype);
        assert_dtype(&rstd, 2, DTYPE_F32);
        assert(w.shape[0] == x.shape[2]);
        assert(rstd.shape[0] == x.shape[0] && rstd.shape[1] == x.shape[1]);
        wide = wide && is_wide(&w);
    }
    with_compute(x.dtype, [&](auto t) {
        using T = decltype(t);
        rope_arguments<T> a = arguments_of<T>(&y, &x, &positions, &inv_freq);
        if (!w.data) {
            launch<T, false>(q, a, wide, "norm_rope");
            return;
        }
        a.rstd = elements_in<float>(&rstd);
        a.w = (const T *)w.data;
        a.eps = eps;
        launch<T, true>(q, a, wide, "norm_rope");
    });
}
