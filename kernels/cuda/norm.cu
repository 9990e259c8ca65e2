/* RMSNorm over the last dimension, alone and behind a residual addition.
 *
 * A row is held in registers by a team: some lanes of a warp where rows are short (the per-head
 * norm), a block where they are long, so that it is read once. Rows that are not aligned, or longer
 * than a block can hold, are read twice, an element at a time.
 *
 * In the backward a team walks many rows and sums dw on its way; the blocks' sums are added up in
 * fixed order by a second kernel.
 */
#include "kernels/cuda/device.cuh"

/* Vectors of a row that a thread holds. */
constexpr int HELD = 2;
constexpr int MOST_HELD = 4;

/* Who shares a row. */
struct team {
    int lanes;   /* of a warp, a power of two; 0: the whole block */
    int threads; /* of a block */
    int held;    /* vectors a thread */
};

static struct team team_for(int64_t m, bool wide)
{
    int64_t vectors = (m + WIDE - 1) / WIDE;
    if (!wide || vectors > 1024 * MOST_HELD)
        return {0, BLOCK, 0};
    if (vectors <= WARP * HELD) {
        int lanes = 1;
        while (lanes < WARP && lanes * HELD < vectors)
            lanes *= 2;
        return {lanes, BLOCK, HELD};
    }
    int held = vectors <= 1024 * HELD ? HELD : MOST_HELD;
    int64_t threads = (vectors + held - 1) / held;
    return {0, (int)((threads + WARP - 1) / WARP * WARP), held};
}

__device__ static float team_sum(float x, int lanes, float *shared)
{
    return lanes ? lanes_sum(x, lanes) : block_sum(x, shared);
}

/* What the kernels below find out about where they are. */
struct place {
    int team, teams; /* in the block */
    int lane, width; /* in the team */

    __device__ place(int lanes)
    {
        width = lanes ? lanes : blockDim.x;
        teams = blockDim.x / width;
        team = threadIdx.x / width;
        lane = threadIdx.x % width;
    }
};

/* ---- Forward ---- */

template <class T> struct forward_arguments {
    rows_of<T> y;
    rows_of<float> rstd;
    rows_of<const T> x;
    rows_of<const T> more; /* ADD: x + more goes to sum, and is normalized */
    rows_of<T> sum;
    const T *w;
    int64_t rows, m;
    float eps;
    int lanes;
};

template <class T, int K, bool ADD> __global__ void forward_kernel(const forward_arguments<T> a)
{
    __shared__ float shared[WARP];
    const place at(a.lanes);
    int64_t row = (int64_t)blockIdx.x * at.teams + at.team;
    bool there = row < a.rows;
    vec<T, WIDE> x[K];
    float squares = 0;
    if (there) {
        const T *from = a.x.at(row);
#pragma unroll
        for (int k = 0; k < K; k++) {
            int64_t j = (int64_t)(at.lane + k * at.width) * WIDE;
            if (j < a.m)
                x[k] = load<T, WIDE>(from + j);
        }
        if constexpr (ADD) {
            const T *more = a.more.at(row);
            T *sum = a.sum.at(row);
#pragma unroll
            for (int k = 0; k < K; k++) {
                int64_t j = (int64_t)(at.lane + k * at.width) * WIDE;
                if (j >= a.m)
                    continue;
                vec<T, WIDE> b = load<T, WIDE>(more + j);
#pragma unroll
                for (int i = 0; i < WIDE; i++)
                    x[k].x[i] = rounded<T>(f32(x[k].x[i]) + f32(b.x[i]));
                store(sum + j, x[k]);
            }
        }
#pragma unroll
        for (int k = 0; k < K; k++)
            if ((int64_t)(at.lane + k * at.width) * WIDE < a.m)
#pragma unroll
                for (int i = 0; i < WIDE; i++)
                    squares += f32(x[k].x[i]) * f32(x[k].x[i]);
    }
    float rstd = 1.0f / sqrtf(team_sum(squares, a.lanes, shared) / (float)a.m + a.eps);
    if (!there)
        return;
    if (at.lane == 0)
        *a.rstd.at(row) = rstd;
    T *to = a.y.at(row);
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t j = (int64_t)(at.lane + k * at.width) * WIDE;
        if (j >= a.m)
            continue;
        vec<T, WIDE> w = load<T, WIDE>(a.w + j);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            x[k].x[i] = rounded<T>(f32(x[k].x[i]) * rstd * f32(w.x[i]));
        store(to + j, x[k]);
    }
}

/* A block a row, whatever its length and alignment. */
template <class T, bool ADD> __global__ void any_forward_kernel(const forward_arguments<T> a)
{
    __shared__ float shared[WARP];
    int64_t row = blockIdx.x;
    const T *x = a.x.at(row);
    float squares = 0;
    if constexpr (ADD) {
        const T *more = a.more.at(row);
        T *sum = a.sum.at(row);
        for (int64_t j = threadIdx.x; j < a.m; j += blockDim.x)
            sum[j] = rounded<T>(f32(x[j]) + f32(more[j]));
        x = sum; /* each thread reads what it wrote */
    }
    for (int64_t j = threadIdx.x; j < a.m; j += blockDim.x)
        squares += f32(x[j]) * f32(x[j]);
    float rstd = 1.0f / sqrtf(block_sum(squares, shared) / (float)a.m + a.eps);
    if (threadIdx.x == 0)
        *a.rstd.at(row) = rstd;
    T *y = a.y.at(row);
    for (int64_t j = threadIdx.x; j < a.m; j += blockDim.x)
        y[j] = rounded<T>(f32(x[j]) * rstd * f32(a.w[j]));
}

template <class T, bool ADD>
static void forward(struct kernel_queue *q, forward_arguments<T> a, bool wide, const char *what)
{
    if (q->failure || a.rows == 0 || a.m == 0)
        return;
    struct team team = team_for(a.m, wide);
    int64_t teams = team.lanes ? team.threads / team.lanes : 1;
    int64_t blocks = (a.rows + teams - 1) / teams;
    assert(blocks <= INT32_MAX);
    a.lanes = team.lanes;
    if (team.held == HELD)
        forward_kernel<T, HELD, ADD><<<(unsigned)blocks, team.threads, 0, q->stream>>>(a);
    else if (team.held)
        forward_kernel<T, MOST_HELD, ADD><<<(unsigned)blocks, team.threads, 0, q->stream>>>(a);
    else
        any_forward_kernel<T, ADD><<<(unsigned)blocks, team.threads, 0, q->stream>>>(a);
    cuda_check(q, cudaGetLastError(), what);
}

static void assert_norm(const struct tensor *x, const struct tensor *w, const struct tensor *rstd)
{
    assert(x->dims >= 2);
    assert_compute(x, x->dims);
    assert_dtype(w, 1, x->dtype);
    assert_dtype(rstd, x->dims - 1, DTYPE_F32);
    assert(w->shape[0] == row_length(x));
    for (int i = 0; i < rstd->dims; i++)
        assert(rstd->shape[i] == x->shape[i]);
    (void)w, (void)rstd;
}

void cuda_rmsnorm_forward(struct kernel_queue *q, struct tensor y, struct tensor rstd,
                          struct tensor x, struct tensor w, float eps)
{
    assert_norm(&x, &w, &rstd);
    assert(y.dtype == x.dtype && same_shape(&y, &x));
    with_compute(x.dtype, [&](auto t) {
        using T = decltype(t);
        forward_arguments<T> a = {.y = rows_in<T>(&y),
                                  .rstd = elements_in<float>(&rstd),
                                  .x = rows_in<const T>(&x),
                                  .more = {},
                                  .sum = {},
                                  .w = (const T *)w.data,
                                  .rows = row_count(&x),
                                  .m = row_length(&x),
                                  .eps = eps,
                                  .lanes = 0};
        forward<T, false>(q, a, is_wide(&x) && is_wide(&y) && is_wide(&w), "rmsnorm_forward");
    });
}

void cuda_add_rmsnorm(struct kernel_queue *q, struct tensor sum, struct tensor y,
                      struct tensor rstd, struct tensor a, struct tensor b, struct tensor w,
                      float eps)
{
    assert_norm(&a, &w, &rstd);
    assert(y.dtype == a.dtype && b.dtype == a.dtype && sum.dtype == a.dtype);
    assert(same_shape(&y, &a) && same_shape(&b, &a) && same_shape(&sum, &a));
    bool wide = is_wide(&a) && is_wide(&b) && is_wide(&sum) && is_wide(&y) && is_wide(&w);
    with_compute(a.dtype, [&](auto t) {
        using T = decltype(t);
        forward_arguments<T> arguments = {.y = rows_in<T>(&y),
                                          .rstd = elements_in<float>(&rstd),
                                          .x = rows_in<const T>(&a),
                                          .more = rows_in<const T>(&b),
                                          .sum = rows_in<T>(&sum),
                                          .w = (const T *)w.data,
                                          .rows = row_count(&a),
                                          .m = row_length(&a),
                                          .eps = eps,
                                          .lanes = 0};
        forward<T, true>(q, arguments, wide, "add_rmsnorm");
    });
}

/* ---- Backward ---- */

template <class T, class D> struct backward_arguments {
    rows_of<T> dx;
    rows_of<const D> dy;
    rows_of<const T> x;
    rows_of<const float> rstd;
    const T *w;
    float *part; /* [blocks, m]: sums of dw */
    int64_t rows, m;
    int lanes;
};

/* dx += rstd (dy w - x along), along = rstd^2 mean(dy w x); dw = sum of dy x rstd. */
template <class T, class D, int K> __global__ void backward_kernel(const backward_arguments<T, D> a)
{
    extern __shared__ float sums[]; /* [teams, m] */
    __shared__ float shared[2][WARP];
    const place at(a.lanes);
    vec<T, WIDE> w[K];
    float dw[K][WIDE] = {};
    int64_t stride = (int64_t)gridDim.x * at.teams;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t j = (int64_t)(at.lane + k * at.width) * WIDE;
        if (j < a.m)
            w[k] = load<T, WIDE>(a.w + j);
    }
    int turn = 0;
    for (int64_t first = (int64_t)blockIdx.x * at.teams; first < a.rows; first += stride) {
        int64_t row = first + at.team;
        bool there = row < a.rows;
        vec<T, WIDE> x[K], dx[K];
        vec<D, WIDE> dy[K];
        float rstd = there ? *a.rstd.at(row) : 0, dot = 0;
        const T *x_row = there ? a.x.at(row) : nullptr;
        const D *dy_row = there ? a.dy.at(row) : nullptr;
        T *dx_row = there ? a.dx.at(row) : nullptr;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int64_t j = (int64_t)(at.lane + k * at.width) * WIDE;
            if (!there || j >= a.m)
                continue;
            x[k] = load<T, WIDE>(x_row + j);
            dy[k] = load<D, WIDE>(dy_row + j);
            dx[k] = load<T, WIDE>(dx_row + j);
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            int64_t j = (int64_t)(at.lane + k * at.width) * WIDE;
            if (!there || j >= a.m)
                continue;
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                dot += f32(dy[k].x[i]) * f32(w[k].x[i]) * f32(x[k].x[i]);
        }
        dot = team_sum(dot, a.lanes, shared[turn]);
        turn ^= 1;
        float along = dot * rstd * rstd / (float)a.m;
#pragma unroll
        for (int k = 0; k < K; k++) {
            int64_t j = (int64_t)(at.lane + k * at.width) * WIDE;
            if (!there || j >= a.m)
                continue;
#pragma unroll
            for (int i = 0; i < WIDE; i++) {
                float d = f32(dy[k].x[i]), value = f32(x[k].x[i]);
                dw[k][i] += d * (value * rstd);
                dx[k].x[i] =
                    rounded<T>(f32(dx[k].x[i]) + rstd * (d * f32(w[k].x[i]) - value * along));
            }
            store(dx_row + j, dx[k]);
        }
    }
    float *own = sums + (int64_t)at.team * a.m;
#pragma unroll
    for (int k = 0; k < K; k++) {
        int64_t j = (int64_t)(at.lane + k * at.width) * WIDE;
        if (j < a.m)
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                own[j + i] = dw[k][i];
    }
    __syncthreads();
    for (int64_t j = threadIdx.x; j < a.m; j += blockDim.x) {
        float sum = 0;
        for (int team = 0; team < at.teams; team++)
            sum += sums[team * a.m + j];
        a.part[blockIdx.x * a.m + j] = sum;
    }
}

/* A block for every so many rows, whatever their length and alignment; dw is summed in `part`. */
template <class T, class D> __global__ void any_backward_kernel(const backward_arguments<T, D> a)
{
    __shared__ float shared[2][WARP];
    float *dw = a.part + blockIdx.x * a.m;
    int turn = 0;
    for (int64_t j = threadIdx.x; j < a.m; j += blockDim.x)
        dw[j] = 0;
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const T *x = a.x.at(row);
        const D *dy = a.dy.at(row);
        T *dx = a.dx.at(row);
        float rstd = *a.rstd.at(row), dot = 0;
        for (int64_t j = threadIdx.x; j < a.m; j += blockDim.x)
            dot += f32(dy[j]) * f32(a.w[j]) * f32(x[j]);
        dot = block_sum(dot, shared[turn]);
        turn ^= 1;
        float along = dot * rstd * rstd / (float)a.m;
        for (int64_t j = threadIdx.x; j < a.m; j += blockDim.x) {
            float d = f32(dy[j]), value = f32(x[j]);
            dw[j] += d * (value * rstd);
            dx[j] = rounded<T>(f32(dx[j]) + rstd * (d * f32(a.w[j]) - value * along));
        }
    }
}

template <class T, class D>
static void backward(struct kernel_queue *q, backward_arguments<T, D> a, float *dw, bool wide)
{
    struct team team = team_for(a.m, wide);
    auto kernel = team.held == HELD ? backward_kernel<T, D, HELD>
                  : team.held       ? backward_kernel<T, D, MOST_HELD>
                                    : any_backward_kernel<T, D>;
    int64_t teams = team.lanes ? team.threads / team.lanes : 1;
    size_t shared = team.held ? (size_t)(teams * a.m) * sizeof(float) : 0;
    /* As many blocks as run at a time. */
    int resident = 1;
    cuda_check(
        q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
        "rmsnorm_backward");
    cuda_check(
        q, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, team.threads, shared),
        "rmsnorm_backward");
    int64_t blocks = (a.rows + teams - 1) / teams;
    int64_t most = (int64_t)cuda_multiprocessors() * (resident > 0 ? resident : 1);
    blocks = blocks < most ? blocks : most;
    a.lanes = team.lanes;
    a.part = (float *)cuda_scratch(q, (size_t)(blocks * a.m) * sizeof *a.part);
    if (!a.part)
        return;
    kernel<<<(unsigned)blocks, team.threads, shared, q->stream>>>(a);
    cuda_check(q, cudaGetLastError(), "rmsnorm_backward");
    add_partial_sums(q, dw, a.part, blocks, a.m, "rmsnorm_backward");
}

void cuda_rmsnorm_backward(struct kernel_queue *q, struct tensor dx, struct tensor dw,
                           struct tensor dy, struct tensor x, struct tensor w, struct tensor rstd)
{
    assert_norm(&x, &w, &rstd);
    assert_dtype(&dw, 1, DTYPE_F32);
    assert(dx.dtype == x.dtype && same_shape(&dx, &x) && same_shape(&dw, &w));
    assert((dy.dtype == x.dtype || dy.dtype == DTYPE_F32) && same_shape(&dy, &x));
    if (q->failure || row_count(&x) == 0 || row_length(&x) == 0)
        return;
    bool wide = is_wide(&x) && is_wide(&dx) && is_wide(&dy) && is_wide(&w);
    with_compute(x.dtype, [&](auto t) {
        with_compute(dy.dtype, [&](auto d) {
            using T = decltype(t);
            using D = decltype(d);
            if constexpr (sizeof(D) >= sizeof(T)) {
                backward_arguments<T, D> a = {.dx = rows_in<T>(&dx),
                                              .dy = rows_in<const D>(&dy),
                                              .x = rows_in<const T>(&x),
                                              .rstd = elements_in<const float>(&rstd),
                                              .w = (const T *)w.data,
                                              .part = nullptr,
                                              .rows = row_count(&x),
                                              .m = row_length(&x),
                                              .lanes = 0};
                backward<T, D>(q, a, (float *)dw.data, wide);
            }
        });
    });
}
