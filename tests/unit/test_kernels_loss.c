/* Cross-entropy, the projection onto the vocabulary in chunks, the squared norm and AdamW. */
#include "tests/unit/test_kernels_random.h"

/* Cross-entropy of a row, and weight (softmax - [label]) where gradient is not NULL. */
static double entropy_row(const double *x, int64_t m, int64_t label, double weight,
                          double *gradient)
{
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < m; j++)
        top = x[j] > top ? x[j] : top;
    for (int64_t j = 0; j < m; j++)
        sum += exp(x[j] - top);
    for (int64_t j = 0; gradient && j < m; j++)
        gradient[j] = weight * (exp(x[j] - top) / sum - (j == label));
    return top + log(sum) - x[label];
}

static void cross_entropy_and_its_gradient(void **state)
{
    (void)state;
    for (int round = 0; round < 120; round++) {
        random_state = 100 + (uint64_t)round;
        int64_t n = chance(0.1) ? 0 : pick(1, 20), m = chance(0.1) ? 1 : pick(1, 3000);
        float most = chance(0.3) ? 1e4f : chance(0.5) ? 80 : 5;
        struct tensor logits = random_tensor(n, m, -1, -most, most), loss = poisoned(n, -1, -1);
        struct tensor labels = random_i32(n, 0, m - 1), weights = random_tensor(n, -1, -1, -3, 3);
        bool gradients = chance(0.6);
        if (n && chance(0.3))
            *at(&weights, 0, 0) = 0;
        struct tensor kept = clone(logits);
        double *el = doubles(n), *eg = doubles(n * m), *row = doubles(m);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < m; j++)
                row[j] = *at(&logits, i, j);
            el[i] =
                entropy_row(row, m, ((int32_t *)labels.data)[i], *at(&weights, 0, i), eg + i * m);
        }
        kernels->cross_entropy(queue, loss, logits, labels,
                               gradients ? weights : (struct tensor){0});
        check_tensor("loss", loss, el, 1e-6, 1);
        if (gradients)
            check_tensor("logits", logits, eg, 2e-6, 1);
        else
            check_equal("logits", logits, kept);
        free_all();
    }
}

/* Probabilities under 1e-38, labels far above and below all others, equal logits. */
static void cross_entropy_at_the_extremes(void **state)
{
    (void)state;
    static const struct {
        float logits[3];
        int32_t label;
        double loss;
    } cases[] = {
        {{1000, 0, 0}, 0, 0},
        {{1000, 0, 0}, 1, 1000},
        {{-1000, -1000, -1000}, 2, 1.0986122887},
        {{1e30f, 1e30f, -1e30f}, 0, 0.69314718056},
        {{3e38f, 0, 0}, 0, 0},
        {{0, 0, -INFINITY}, 0, 0.69314718056},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct tensor logits = random_tensor(1, 3, -1, 0, 0), loss = poisoned(1, -1, -1);
        struct tensor labels = random_i32(1, cases[c].label, cases[c].label);
        memcpy(at(&logits, 0, 0), cases[c].logits, sizeof cases[c].logits);
        kernels->cross_entropy(queue, loss, logits, labels, random_tensor(1, -1, -1, 1, 1));
        check_close("loss", *at(&loss, 0, 0), cases[c].loss, 1e-6, 1);
        double sum = 0;
        for (int j = 0; j < 3; j++)
            sum += *at(&logits, 0, j);
        check_close("sum of the gradient", sum, 0, 1e-6, 1);
        free_all();
    }
    struct tensor logits = random_tensor(1, 3, -1, 0, 0), loss = poisoned(1, -1, -1);
    *at(&logits, 0, 1) = NAN; /* what went wrong before must show in the loss */
    kernels->cross_entropy(queue, loss, logits, random_i32(1, 0, 0), (struct tensor){0});
    assert_true(isnan(*at(&loss, 0, 0)));
    free_all();
}

static void projection_loss_is_the_same_in_any_chunks(void **state)
{
    (void)state;
    for (int round = 0; round < 25; round++) {
        random_state = 500 + (uint64_t)round;
        int64_t n = round == 0 ? 0 : pick(1, 40), m = pick(1, 30), v = pick(1, 200);
        struct tensor h = random_tensor(n, m, -1, -1, 1), w = random_tensor(v, m, -1, -1, 1);
        struct tensor labels = random_i32(n, 0, v - 1), weights = random_tensor(n, -1, -1, -2, 2);
        struct tensor dw_before = random_tensor(v, m, -1, -1, 1);
        double *el = doubles(n), *edh = doubles(n * m), *edw = doubles(v * m);
        double *logits = doubles(v), *gradient = doubles(v);
        for (int64_t i = 0; i < v * m; i++)
            edw[i] = *at(&dw_before, i / m, i % m);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t t = 0; t < v; t++) {
                logits[t] = 0;
                for (int64_t j = 0; j < m; j++)
                    logits[t] += (double)*at(&h, i, j) * *at(&w, t, j);
            }
            el[i] =
                entropy_row(logits, v, ((int32_t *)labels.data)[i], *at(&weights, 0, i), gradient);
            for (int64_t t = 0; t < v; t++)
                for (int64_t j = 0; j < m; j++) {
                    edh[i * m + j] += gradient[t] * *at(&w, t, j);
                    edw[t * m + j] += gradient[t] * *at(&h, i, j);
                }
        }
        int64_t chunks[] = {1, 2, 7, n ? n : 1, n + 5};
        for (int c = 0; c < 5; c++) {
            struct projection_loss p = {.h = h,
                                        .w = w,
                                        .labels = labels,
                                        .weights = weights,
                                        .loss = poisoned(n, -1, -1),
                                        .dh = poisoned(n, m, -1),
                                        .dw = clone(dw_before),
                                        .logits = poisoned(chunks[c], v, -1)};
            kernel_projection_loss(kernels, queue, &p);
            check_tensor("loss", p.loss, el, 2e-6, 2);
            check_tensor("dh", p.dh, edh, 4e-6, 4);
            check_tensor("dw", p.dw, edw, 4e-6, 4);
            fill(p.loss, NAN, NAN);
            p.weights = p.dh = p.dw = (struct tensor){0};
            kernel_projection_loss(kernels, queue, &p);
            check_tensor("loss without gradients", p.loss, el, 2e-6, 2);
        }
        free_all();
    }
}

static void squares_are_added_up(void **state)
{
    (void)state;
    for (int round = 0; round < 60; round++) {
        random_state = 800 + (uint64_t)round;
        int dims = (int)pick(1, 3);
        int64_t n = round == 0 ? 1000003 : pick(0, 50);
        struct tensor x = random_tensor(n, round && dims > 1 ? pick(1, 40) : -1,
                                        round && dims > 2 ? pick(1, 20) : -1, 0, 3);
        struct tensor out = random_tensor(1, -1, -1, 0, 5);
        double sum = *at(&out, 0, 0);
        for (int64_t i = 0; i < rows_of(&x); i++)
            for (int64_t j = 0; j < columns_of(&x); j++)
                sum += (double)*at(&x, i, j) * *at(&x, i, j);
        kernels->sum_squares(queue, out, x);
        check_close("sum", *at(&out, 0, 0), sum, 2e-7, 0);
        free_all();
    }
}

static void adamw_over_steps(void **state)
{
    (void)state;
    for (int round = 0; round < 30; round++) {
        random_state = 1100 + (uint64_t)round;
        int64_t n = chance(0.1) ? 0 : pick(1, 200);
        struct tensor param = random_tensor(n, -1, -1, -1, 1), m = random_tensor(n, -1, -1, 0, 0);
        struct tensor v = random_tensor(n, -1, -1, 0, 0), grad = poisoned(n, -1, -1);
        struct adamw o = {.lr = uniform(1e-4f, 1e-1f),
                          .beta1 = 0.9f,
                          .beta2 = chance(0.5) ? 0.95f : 0.999f,
                          .eps = 1e-8f,
                          .weight_decay = chance(0.5) ? 0 : uniform(0, 0.3f)};
        struct tensor half = tensor_1d(take((size_t)n * 2), DTYPE_BF16, DEVICE_CPU, n);
        struct tensor copy = chance(0.5) ? half : (struct tensor){0};
        double *ep = doubles(n), *em = doubles(n), *ev = doubles(n);
        for (int64_t i = 0; i < n; i++)
            ep[i] = *at(&param, 0, i);
        for (int64_t step = 1; step <= 40; step++) {
            o.step = step;
            o.grad_scale = uniform(0.1f, 2);
            fill(grad, -1, 1);
            if (n && step < 5)
                *at(&grad, 0, 0) = 0; /* 0 / (0 + eps) */
            for (int64_t i = 0; i < n; i++) {
                double g = (double)*at(&grad, 0, i) * o.grad_scale;
                em[i] = o.beta1 * em[i] + (1 - (double)o.beta1) * g;
                ev[i] = o.beta2 * ev[i] + (1 - (double)o.beta2) * g * g;
                double mean = em[i] / (1 - pow(o.beta1, (double)step));
                double square = ev[i] / (1 - pow(o.beta2, (double)step));
                ep[i] -= (double)o.lr * o.weight_decay * ep[i];
                ep[i] -= o.lr * mean / (sqrt(square) + o.eps);
            }
            kernels->adamw(queue, param, m, v, grad, copy, &o);
            check_tensor("param", param, ep, 1e-5, 1);
        }
        check_tensor("m", m, em, 1e-5, 0.1);
        check_tensor("v", v, ev, 1e-5, 0.01);
        if (copy.data) {
            struct tensor back = poisoned(n, -1, -1);
            kernels->copy(queue, back, copy);
            check_tensor("copy", back, ep, 0x1p-8, 1e-5);
        }
        free_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cross_entropy_and_its_gradient),
        cmocka_unit_test(cross_entropy_at_the_extremes),
        cmocka_unit_test(projection_loss_is_the_same_in_any_chunks),
        cmocka_unit_test(squares_are_added_up),
        cmocka_unit_test(adamw_over_steps),
    };
    return cmocka_run_group_tests(tests, open_queue, close_queue);
}
