/* What a decoder layer is made of, but attention: products, biases, norms, RoPE, SwiGLU, and the
 * compositions of norms. Each against the loop of its definition in double precision. */
#include "kernels/cpu/exp.h"
#include "tests/unit/test_kernels_random.h"

#define ROUNDS 150

static int64_t odd_size(int64_t most)
{
    return chance(0.15) ? 1 : pick(1, most);
}

static void exponentials_are_those_of_libm(void **state)
{
    (void)state;
    random_state = 5;
    double worst = 0;
    for (int i = 0; i < 2000000; i++) {
        float x = i % 2 ? uniform(-87.3f, 88.0f) : uniform(-2, 2);
        double error = fabs(exp_f32(x) / exp((double)x) - 1);
        worst = error > worst ? error : worst;
    }
    assert_true(worst < 1.5e-7);
    assert_true(exp_f32(0) == 1 && exp_f32(-0.0f) == 1);
    assert_true(exp_f32(-INFINITY) == 0 && exp_f32(-1e30f) == 0 && exp_f32(-88) == 0);
    assert_true(exp_f32(INFINITY) == exp_f32(88) && isfinite(exp_f32(88)));
    assert_true(isnan(exp_f32(NAN)));
}

static void matmul_is_a_triple_loop(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        random_state = 100 + (uint64_t)round;
        int64_t n = odd_size(90), m = odd_size(90), inner = odd_size(70);
        bool ta = chance(0.5), tb = chance(0.5), overwrite = chance(0.5);
        if (round % 20 == 0)
            *(round % 40 ? &n : &inner) = 0;
        struct tensor a =
            ta ? random_tensor(inner, n, -1, -1, 1) : random_tensor(n, inner, -1, -1, 1);
        struct tensor b =
            tb ? random_tensor(m, inner, -1, -1, 1) : random_tensor(inner, m, -1, -1, 1);
        struct tensor c = overwrite ? poisoned(n, m, -1) : random_tensor(n, m, -1, -1, 1);
        float alpha = uniform(-2, 2), beta = overwrite ? 0 : uniform(-2, 2);
        double *expected = doubles(n * m);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < m; j++) {
                double sum = 0;
                for (int64_t k = 0; k < inner; k++)
                    sum += (double)(ta ? *at(&a, k, i) : *at(&a, i, k)) *
                           (tb ? *at(&b, j, k) : *at(&b, k, j));
                expected[i * m + j] = alpha * sum + (overwrite ? 0 : beta * *at(&c, i, j));
            }
        kernels->matmul(queue, c, a, ta, b, tb, alpha, beta);
        check_tensor("c", c, expected, 2e-6, 5);
        free_all();
    }
}

static void biases_are_added_to_rows_and_summed_back(void **state)
{
    (void)state;
    for (int round = 0; round < 50; round++) {
        random_state = 400 + (uint64_t)round;
        int64_t n = chance(0.1) ? 0 : odd_size(300), m = odd_size(70);
        struct tensor x = random_tensor(n, m, -1, -1, 1), bias = random_tensor(m, -1, -1, -1, 1);
        struct tensor dbias = random_tensor(m, -1, -1, -1, 1);
        double *y = doubles(n * m), *sum = doubles(m);
        for (int64_t j = 0; j < m; j++) {
            sum[j] = *at(&dbias, 0, j);
            for (int64_t i = 0; i < n; i++) {
                sum[j] += *at(&x, i, j);
                y[i * m + j] = (double)*at(&x, i, j) + *at(&bias, 0, j);
            }
        }
        kernels->bias_backward(queue, dbias, x);
        check_tensor("dbias", dbias, sum, 1e-6, 1);
        kernels->bias_forward(queue, x, bias);
        check_tensor("x", x, y, 1e-6, 1);
        free_all();
    }
}

/* y, and the loss sum(y dy) whose gradients the backward must give. */
static void norm_row(const float *x, const float *w, int64_t m, double eps, double *y, double *rstd)
{
    double squares = 0;
    for (int64_t j = 0; j < m; j++)
        squares += (double)x[j] * x[j];
    *rstd = 1 / sqrt(squares / (double)m + eps);
    for (int64_t j = 0; j < m; j++)
        y[j] = x[j] * *rstd * w[j];
}

static void rmsnorm_and_its_gradients(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        random_state = 600 + (uint64_t)round;
        bool heads = chance(0.5), in_place = chance(0.3);
        int64_t n = chance(0.1) ? 0 : odd_size(60), h = heads ? pick(1, 6) : 1, m = odd_size(150);
        float eps = 1e-6f;
        struct tensor x = heads ? random_tensor(n, h, m, -3, 3) : random_tensor(n, m, -1, -3, 3);
        struct tensor dy = heads ? random_tensor(n, h, m, -1, 1) : random_tensor(n, m, -1, -1, 1);
        struct tensor dx = heads ? random_tensor(n, h, m, -1, 1) : random_tensor(n, m, -1, -1, 1);
        struct tensor w = random_tensor(m, -1, -1, 0.5f, 2), dw = random_tensor(m, -1, -1, -1, 1);
        struct tensor rstd = heads ? poisoned(n, h, -1) : poisoned(n, -1, -1);
        struct tensor kept = clone(x), y = in_place ? x : clone(x);
        if (!in_place)
            fill(y, NAN, NAN);
        int64_t rows = n * h;
        double *ey = doubles(rows * m), *er = doubles(rows), *edx = doubles(rows * m);
        double *edw = doubles(m), *xhat = doubles(m);
        for (int64_t j = 0; j < m; j++)
            edw[j] = *at(&dw, 0, j);
        for (int64_t i = 0; i < rows; i++) {
            norm_row(at(&x, i, 0), at(&w, 0, 0), m, eps, ey + i * m, &er[i]);
            double along = 0;
            for (int64_t j = 0; j < m; j++) {
                xhat[j] = *at(&x, i, j) * er[i];
                along += (double)*at(&dy, i, j) * *at(&w, 0, j) * xhat[j] / (double)m;
                edw[j] += *at(&dy, i, j) * xhat[j];
            }
            for (int64_t j = 0; j < m; j++)
                edx[i * m + j] = *at(&dx, i, j) +
                                 er[i] * ((double)*at(&dy, i, j) * *at(&w, 0, j) - xhat[j] * along);
        }
        kernels->rmsnorm_forward(queue, y, rstd, x, w, eps);
        check_tensor("y", y, ey, 2e-6, 1);
        check_gaps(rstd);
        for (int64_t i = 0; i < rows; i++)
            check_close("rstd", heads ? *at(&rstd, i / h, i % h) : *at(&rstd, 0, i), er[i], 1e-6,
                        0);
        kernels->rmsnorm_backward(queue, dx, dw, dy, kept, w, rstd);
        check_tensor("dx", dx, edx, 3e-6, 2);
        check_tensor("dw", dw, edw, 3e-6, 2);
        free_all();
    }
}

/* The backward's formula itself, by differences of a loss in double precision. */
static void rmsnorm_gradient_is_a_difference_quotient(void **state)
{
    (void)state;
    random_state = 8;
    enum { M = 13 };
    struct tensor x = random_tensor(1, M, -1, -2, 2), w = random_tensor(M, -1, -1, 0.5f, 2);
    struct tensor dy = random_tensor(1, M, -1, -1, 1), dx = random_tensor(1, M, -1, 0, 0);
    struct tensor dw = random_tensor(M, -1, -1, 0, 0), rstd = poisoned(1, -1, -1);
    kernels->rmsnorm_forward(queue, clone(x), rstd, x, w, 1e-5f);
    kernels->rmsnorm_backward(queue, dx, dw, dy, x, w, rstd);
    for (int j = 0; j < M; j++) {
        double loss[2], y[M], unused;
        for (int side = 0; side < 2; side++) {
            float keep = *at(&x, 0, j);
            *at(&x, 0, j) += side ? 0x1p-8f : -0x1p-8f;
            norm_row(at(&x, 0, 0), at(&w, 0, 0), M, 1e-5, y, &unused);
            *at(&x, 0, j) = keep;
            loss[side] = 0;
            for (int i = 0; i < M; i++)
                loss[side] += y[i] * *at(&dy, 0, i);
        }
        check_close("dx", *at(&dx, 0, j), (loss[1] - loss[0]) / 0x1p-7, 1e-4, 1);
    }
    free_all();
}

static struct tensor frequencies(int64_t half, double theta)
{
    struct tensor f = poisoned(half, -1, -1);
    for (int64_t j = 0; j < half; j++)
        *at(&f, 0, j) = (float)pow(theta, -(double)j / (double)half);
    return f;
}

static void rope_row(double *y, const float *x, int32_t position, const struct tensor *f,
                     int64_t half)
{
    for (int64_t j = 0; j < half; j++) {
        float angle = (float)position * *at(f, 0, j); /* fp32 by definition */
        double c = cos((double)angle), s = sin((double)angle);
        y[j] = x[j] * c - x[j + half] * s;
        y[j + half] = x[j + half] * c + x[j] * s;
    }
}

static void rope_rotates_and_its_inverse_rotates_back(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        random_state = 900 + (uint64_t)round;
        int64_t n = chance(0.1) ? 0 : odd_size(40), heads = pick(1, 5), half = odd_size(64);
        struct tensor x = random_tensor(n, heads, 2 * half, -2, 2);
        struct tensor f = frequencies(half, chance(0.5) ? 1e4 : 1e6);
        struct tensor positions = random_i32(n, 0, chance(0.5) ? 1 << 21 : 100);
        double *turned = doubles(n * heads * 2 * half), *before = doubles(n * heads * 2 * half);
        for (int64_t i = 0; i < n * heads; i++) {
            rope_row(turned + i * 2 * half, at(&x, i, 0), ((int32_t *)positions.data)[i / heads],
                     &f, half);
            for (int64_t j = 0; j < 2 * half; j++)
                before[i * 2 * half + j] = *at(&x, i, j);
        }
        kernels->rope(queue, x, positions, f, false);
        check_tensor("x", x, turned, 1e-6, 1);
        kernels->rope(queue, x, positions, f, true);
        check_tensor("x", x, before, 1e-6, 1);
        free_all();
    }
}

static void swiglu_and_its_gradients(void **state)
{
    (void)state;
    for (int round = 0; round < ROUNDS; round++) {
        random_state = 1200 + (uint64_t)round;
        int64_t n = chance(0.1) ? 0 : odd_size(20), m = odd_size(200);
        float most = chance(0.2) ? 150 : 6;
        struct tensor gate = random_tensor(n, m, -1, -most, most);
        struct tensor up = random_tensor(n, m, -1, -2, 2), dout = random_tensor(n, m, -1, -1, 1);
        struct tensor out = poisoned(n, m, -1), dgate = poisoned(n, m, -1),
                      dup = poisoned(n, m, -1);
        double *eo = doubles(n * m), *eg = doubles(n * m), *eu = doubles(n * m);
        for (int64_t i = 0; i < n * m; i++) {
            double g = *at(&gate, i / m, i % m), u = *at(&up, i / m, i % m);
            double d = *at(&dout, i / m, i % m), s = 1 / (1 + exp(-g));
            eo[i] = g * s * u;
            eg[i] = d * u * (s + g * s * (1 - s));
            eu[i] = d * g * s;
        }
        kernels->swiglu_forward(queue, out, gate, up);
        kernels->swiglu_backward(queue, dgate, dup, dout, gate, up);
        check_tensor("out", out, eo, 1e-6, 1);
        check_tensor("dgate", dgate, eg, 1e-6, 1);
        check_tensor("dup", dup, eu, 1e-6, 1);
        kernels->swiglu_backward(queue, gate, up, dout, gate, up);
        check_tensor("dgate in place", gate, eg, 1e-6, 1);
        check_tensor("dup in place", up, eu, 1e-6, 1);
        free_all();
    }
}

static void sums_are_normalized(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        random_state = 1500 + (uint64_t)round;
        int64_t n = pick(0, 20), m = odd_size(90);
        bool in_place = chance(0.5);
        struct tensor a = random_tensor(n, m, -1, -1, 1), b = random_tensor(n, m, -1, -1, 1);
        struct tensor sum = in_place ? a : poisoned(n, m, -1), y = poisoned(n, m, -1);
        struct tensor rstd = poisoned(n, -1, -1), w = random_tensor(m, -1, -1, 0.5f, 2);
        double *es = doubles(n * m), *ey = doubles(n * m), r;
        float *row = take((size_t)m * sizeof *row);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < m; j++)
                es[i * m + j] = row[j] = *at(&a, i, j) + *at(&b, i, j);
            norm_row(row, at(&w, 0, 0), m, 1e-6f, ey + i * m, &r);
        }
        kernel_add_rmsnorm(kernels, queue, sum, y, rstd, a, b, w, 1e-6f);
        check_tensor("sum", sum, es, 1e-6, 0);
        check_tensor("y", y, ey, 2e-6, 1);
        free_all();
    }
}

static void heads_are_normalized_and_rotated(void **state)
{
    (void)state;
    for (int round = 0; round < 40; round++) {
        random_state = 1700 + (uint64_t)round;
        int64_t n = pick(0, 20), heads = pick(1, 4), half = odd_size(32), d = 2 * half;
        bool norm = chance(0.6);
        struct tensor x = random_tensor(n, heads, d, -2, 2), y = poisoned(n, heads, d);
        struct tensor w = norm ? random_tensor(d, -1, -1, 0.5f, 2) : (struct tensor){0};
        struct tensor rstd = norm ? poisoned(n, heads, -1) : (struct tensor){0};
        struct tensor f = frequencies(half, 1e4), positions = random_i32(n, 0, 5000);
        struct tensor kept = clone(x);
        double *ey = doubles(n * heads * d), *normal = doubles(d), r;
        float *row = take((size_t)d * sizeof *row);
        for (int64_t i = 0; i < n * heads; i++) {
            memcpy(row, at(&x, i, 0), (size_t)d * sizeof *row);
            if (norm)
                norm_row(at(&x, i, 0), at(&w, 0, 0), d, 1e-6f, normal, &r);
            for (int64_t j = 0; norm && j < d; j++)
                row[j] = (float)normal[j];
            rope_row(ey + i * d, row, ((int32_t *)positions.data)[i / heads], &f, half);
        }
        kernel_norm_rope(kernels, queue, y, rstd, x, w, 1e-6f, positions, f);
        check_tensor("y", y, ey, 3e-6, 1);
        check_equal("x", x, kept);
        free_all();
    }
}

/* A backend's fused form is what a caller gets. */
static int fused_calls;
static void fused_norm(struct kernel_queue *q, struct tensor sum, struct tensor y,
                       struct tensor rstd, struct tensor a, struct tensor b, struct tensor w,
                       float eps)
{
    (void)q, (void)sum, (void)y, (void)rstd, (void)a, (void)b, (void)w;
    fused_calls += eps == 1.0f;
}
static void fused_rope(struct kernel_queue *q, struct tensor y, struct tensor rstd, struct tensor x,
                       struct tensor w, float eps, struct tensor positions, struct tensor inv_freq)
{
    (void)q, (void)y, (void)rstd, (void)x, (void)w, (void)positions, (void)inv_freq;
    fused_calls += eps == 2.0f;
}
static void fused_loss(struct kernel_queue *q, const struct projection_loss *p)
{
    (void)q;
    fused_calls += p->h.dims == 0;
}

static void compositions_prefer_the_fused_form(void **state)
{
    (void)state;
    struct kernels table = *kernels;
    table.fused_add_rmsnorm = fused_norm;
    table.fused_norm_rope = fused_rope;
    table.fused_projection_loss = fused_loss;
    struct tensor t = {0};
    struct projection_loss p = {.loss = t};
    kernel_add_rmsnorm(&table, queue, t, t, t, t, t, t, 1.0f);
    kernel_norm_rope(&table, queue, t, t, t, t, 2.0f, t, t);
    kernel_projection_loss(&table, queue, &p);
    assert_int_equal(fused_calls, 3);
    assert_int_equal(kernels->abi, KERNELS_ABI);
    assert_string_equal(kernels->name, "cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponentials_are_those_of_libm),
        cmocka_unit_test(matmul_is_a_triple_loop),
        cmocka_unit_test(biases_are_added_to_rows_and_summed_back),
        cmocka_unit_test(rmsnorm_and_its_gradients),
        cmocka_unit_test(rmsnorm_gradient_is_a_difference_quotient),
        cmocka_unit_test(rope_rotates_and_its_inverse_rotates_back),
        cmocka_unit_test(swiglu_and_its_gradients),
        cmocka_unit_test(sums_are_normalized),
        cmocka_unit_test(heads_are_normalized_and_rotated),
        cmocka_unit_test(compositions_prefer_the_fused_form),
    };
    return cmocka_run_group_tests(tests, open_queue, close_queue);
}
