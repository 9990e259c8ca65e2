/* Each operation of a backend that is a plugin against the CPU backend, over random shapes: odd
 * lengths, no rows, strided views, pointers that are not aligned. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/both.h"
#include "tests/cuda/cuda_test.h"

#define CASES 60

static const enum dtype computed[] = {DTYPE_F32, DTYPE_BF16};
static const enum dtype floats[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};

static void free_many(struct both **all, size_t n)
{
    for (size_t i = 0; i < n; i++)
        both_free(all[i]);
}
#define FREE(...)                                                                                  \
    free_many((struct both *[]){__VA_ARGS__},                                                      \
              sizeof((struct both *[]){__VA_ARGS__}) / sizeof(struct both *))

static void copy_casts(enum dtype to, enum dtype from)
{
    struct line l = line_begin("copy", to);
    l.norm_limit = l.element_limit = 0; /* to the bit */
    for (int i = 0; i < CASES; i++) {
        int64_t n = some_length(40), m = some_length(300), k = chance(0.3) ? some_length(130) : -1;
        struct both x = both_make(from, n, m, k, -3, 3), y = both_make(to, n, m, k, NAN, NAN);
        struct tensor rounded = x.cpu;
        rounded.data = malloc((size_t)tensor_elements(x.cpu) * 4 + 1);
        rounded.dtype = to;
        cpu->copy(cpu_queue, rounded, x.cpu);
        cpu->copy(cpu_queue, y.cpu, rounded);
        free(rounded.data);
        gpu->copy(gpu_queue, y.gpu, x.gpu);
        line_check(&l, &y);
        FREE(&x, &y);
    }
    line_report(&l);
}

static void add(enum dtype to, enum dtype from)
{
    struct line l = line_begin("add", to);
    for (int i = 0; i < CASES; i++) {
        int64_t n = some_length(40), m = some_length(300), k = chance(0.3) ? some_length(130) : -1;
        struct both x = both_make(from, n, m, k, -3, 3), y = both_make(to, n, m, k, -3, 3);
        float alpha = uniform(-2, 2);
        cpu->add(cpu_queue, y.cpu, x.cpu, alpha);
        gpu->add(gpu_queue, y.gpu, x.gpu, alpha);
        line_check(&l, &y);
        FREE(&x, &y);
    }
    line_report(&l);
}

static void gather(enum dtype dtype)
{
    struct line l = line_begin("gather_rows", dtype);
    l.norm_limit = l.element_limit = 0;
    for (int i = 0; i < CASES; i++) {
        int64_t n = some_length(100), v = pick(1, 200), m = some_length(300);
        int64_t k = chance(0.3) ? some_length(130) : -1;
        struct both x = both_make(dtype, v, m, k, -3, 3), y = both_make(dtype, n, m, k, NAN, NAN);
        struct both rows = both_i32(n, chance(0.5) ? -3 : 0, v - 1);
        cpu->gather_rows(cpu_queue, y.cpu, x.cpu, rows.cpu);
        gpu->gather_rows(gpu_queue, y.gpu, x.gpu, rows.gpu);
        line_check(&l, &y);
        FREE(&x, &y, &rows);
    }
    line_report(&l);
}

/* Half of the rows go to one, as the mask token's do. */
static void scatter(enum dtype to, enum dtype from)
{
    struct line l = line_begin("scatter_add_rows", to);
    l.norm_limit *= 3; /* sums of up to a thousand, in another order */
    l.element_limit *= 3;
    for (int i = 0; i < CASES; i++) {
        int64_t n = some_length(1500), v = pick(1, chance(0.5) ? 10 : 3000), m = some_length(80);
        int64_t k = chance(0.3) ? some_length(30) : -1;
        struct both x = both_make(from, n, m, k, -3, 3), y = both_make(to, v, m, k, -3, 3);
        struct both rows = both_i32(n, chance(0.5) ? -3 : 0, v - 1);
        struct both again = both_make(to, v, m, k, 0, 0), once = both_make(to, v, m, k, 0, 0);
        int32_t *index = rows.cpu.data;
        for (int64_t j = 0; j < n && i % 2; j++)
            if (chance(0.5))
                index[j] = (int32_t)(v / 2);
        both_upload_i32(&rows);
        cpu->scatter_add_rows(cpu_queue, y.cpu, x.cpu, rows.cpu);
        gpu->scatter_add_rows(gpu_queue, y.gpu, x.gpu, rows.gpu);
        line_check(&l, &y);
        gpu->scatter_add_rows(gpu_queue, once.gpu, x.gpu, rows.gpu);
        gpu->scatter_add_rows(gpu_queue, again.gpu, x.gpu, rows.gpu);
        float *a = both_download(&once, "scatter_add_rows"),
              *b = both_download(&again, "scatter_add_rows");
        expect(!memcmp(a, b, (size_t)tensor_elements(once.cpu) * sizeof *a),
               "scatter_add_rows twice the same");
        free(a);
        free(b);
        FREE(&x, &y, &rows, &again, &once);
    }
    line_report(&l);
}

static void matmul(enum dtype to, enum dtype from)
{
    struct line l = line_begin(from == to ? "matmul" : "matmul of bf16", to);
    l.norm_limit *= 2;
    l.element_limit *= 3;
    for (int i = 0; i < 2 * CASES; i++) {
        int64_t n = some_length(200), m = some_length(200), inner = some_length(300);
        bool ta = chance(0.5), tb = chance(0.5);
        float alpha = chance(0.5) ? 1 : uniform(-2, 2);
        float beta = chance(0.5) ? 0 : chance(0.5) ? 1 : uniform(-2, 2);
        struct both a = both_make(from, ta ? inner : n, ta ? n : inner, -1, -1, 1);
        struct both b = both_make(from, tb ? m : inner, tb ? inner : m, -1, -1, 1);
        bool poison = beta == 0;
        struct both c = both_make(to, n, m, -1, poison ? NAN : -1, poison ? NAN : 1);
        cpu->matmul(cpu_queue, c.cpu, a.cpu, ta, b.cpu, tb, alpha, beta);
        if (!inner && poison)
            memset(c.cpu.data, 0, (size_t)(n * m) * sizeof(float));
        gpu->matmul(gpu_queue, c.gpu, a.gpu, ta, b.gpu, tb, alpha, beta);
        line_check(&l, &c);
        FREE(&a, &b, &c);
    }
    line_report(&l);
}

static void bias(enum dtype dtype)
{
    struct line forward = line_begin("bias_forward", dtype);
    struct line backward = line_begin("bias_backward", DTYPE_F32);
    for (int i = 0; i < CASES; i++) {
        int64_t n = some_length(700), m = some_length(600);
        struct both x = both_make(dtype, n, m, -1, -1, 1), b = both_make(dtype, m, -1, -1, -1, 1);
        struct both d = both_make(DTYPE_F32, m, -1, -1, -1, 1);
        cpu->bias_backward(cpu_queue, d.cpu, x.cpu);
        gpu->bias_backward(gpu_queue, d.gpu, x.gpu);
        line_check(&backward, &d);
        cpu->bias_forward(cpu_queue, x.cpu, b.cpu);
        gpu->bias_forward(gpu_queue, x.gpu, b.gpu);
        line_check(&forward, &x);
        FREE(&x, &b, &d);
    }
    line_report(&forward);
    line_report(&backward);
}

static int64_t norm_length(void)
{
    static const int64_t lengths[] = {64,   128,  256,   1024,  2048, 2560,
                                      4096, 5120, 16384, 20000, 40000};
    return chance(0.5) ? lengths[pick(0, 10)] : 1 + some_length(700);
}

static void norms(enum dtype dtype, enum dtype gradient)
{
    struct line forward = line_begin("rmsnorm_forward", dtype), statistic;
    struct line fused = line_begin("add_rmsnorm", dtype);
    struct line dx_line = line_begin("rmsnorm_backward dx", dtype);
    struct line dw_line = line_begin("rmsnorm_backward dw", DTYPE_F32);
    statistic = line_begin("rmsnorm rstd", DTYPE_F32);
    statistic.norm_limit = dtype == DTYPE_F32 ? 2e-6 : 2e-3; /* add_rmsnorm of rounded sums */
    statistic.element_limit = dtype == DTYPE_F32 ? 2e-6 : 1e-2;
    dw_line.norm_limit = 2e-5;
    dw_line.element_limit = 2e-4;
    for (int i = 0; i < CASES; i++) {
        bool heads = chance(0.4);
        int64_t m = heads ? some_length(260) : norm_length(), h = heads ? pick(1, 20) : -1;
        int64_t n = some_length(m > 3000 ? 40 : 700), middle = heads ? h : m, last = heads ? m : -1;
        if (m == 0)
            continue;
        struct both x = both_make(dtype, n, middle, last, -2, 2),
                    w = both_make(dtype, m, -1, -1, 0, 2);
        struct both y = both_make(dtype, n, middle, last, NAN, NAN);
        struct both rstd = both_make(DTYPE_F32, n, h, -1, NAN, NAN);
        struct both dy = both_make(gradient, n, middle, last, -1, 1);
        struct both dx = both_make(dtype, n, middle, last, -1, 1);
        struct both dw = both_make(DTYPE_F32, m, -1, -1, -1, 1);
        struct both b = both_make(dtype, n, middle, last, -2, 2);
        cpu->rmsnorm_forward(cpu_queue, y.cpu, rstd.cpu, x.cpu, w.cpu, 1e-6f);
        gpu->rmsnorm_forward(gpu_queue, y.gpu, rstd.gpu, x.gpu, w.gpu, 1e-6f);
        line_check(&forward, &y);
        line_check(&statistic, &rstd);
        cpu->rmsnorm_backward(cpu_queue, dx.cpu, dw.cpu, dy.cpu, x.cpu, w.cpu, rstd.cpu);
        gpu->rmsnorm_backward(gpu_queue, dx.gpu, dw.gpu, dy.gpu, x.gpu, w.gpu, rstd.gpu);
        line_check(&dx_line, &dx);
        line_check(&dw_line, &dw);
        bool in_place = chance(0.5);
        struct both *sum = in_place ? &x : &dx;
        kernel_add_rmsnorm(cpu, cpu_queue, sum->cpu, y.cpu, rstd.cpu, x.cpu, b.cpu, w.cpu, 1e-6f);
        kernel_add_rmsnorm(gpu, gpu_queue, sum->gpu, y.gpu, rstd.gpu, x.gpu, b.gpu, w.gpu, 1e-6f);
        line_check(&fused, &y);
        line_check(&fused, sum);
        line_check(&statistic, &rstd);
        FREE(&x, &w, &y, &rstd, &dy, &dx, &dw, &b);
    }
    fused.norm_limit *= dtype == DTYPE_F32 ? 1 : 2;
    line_report(&forward);
    line_report(&fused);
    line_report(&statistic);
    line_report(&dx_line);
    line_report(&dw_line);
}

static void rope(enum dtype dtype)
{
    struct line alone = line_begin("rope", dtype), fused = line_begin("norm_rope", dtype);
    struct line statistic = line_begin("norm_rope rstd", DTYPE_F32);
    for (int i = 0; i < CASES; i++) {
        static const int64_t dims[] = {64, 128, 256, 96, 80};
        int64_t n = some_length(70), h = pick(1, chance(0.2) ? 64 : 9);
        int64_t d = chance(0.6) ? dims[pick(0, 4)] : 2 * pick(1, 130);
        struct both x = both_make(dtype, n, h, d, -2, 2), y = both_make(dtype, n, h, d, NAN, NAN);
        struct both w = chance(0.7) ? both_make(dtype, d, -1, -1, 0, 2) : both_none();
        struct both rstd = both_make(DTYPE_F32, n, h, -1, NAN, NAN);
        struct both positions = both_i32(n, 0, 1 << 21);
        struct both frequencies = both_make(DTYPE_F32, d / 2, -1, -1, 0, 1);
        kernel_norm_rope(cpu, cpu_queue, y.cpu, rstd.cpu, x.cpu, w.cpu, 1e-6f, positions.cpu,
                         frequencies.cpu);
        kernel_norm_rope(gpu, gpu_queue, y.gpu, rstd.gpu, x.gpu, w.gpu, 1e-6f, positions.gpu,
                         frequencies.gpu);
        line_check(&fused, &y);
        if (w.cpu.data)
            line_check(&statistic, &rstd);
        bool inverse = chance(0.5);
        cpu->rope(cpu_queue, x.cpu, positions.cpu, frequencies.cpu, inverse);
        gpu->rope(gpu_queue, x.gpu, positions.gpu, frequencies.gpu, inverse);
        line_check(&alone, &x);
        FREE(&x, &y, &rstd, &positions, &frequencies);
        if (w.cpu.data)
            both_free(&w);
    }
    line_report(&alone);
    line_report(&fused);
    line_report(&statistic);
}

static void swiglu(enum dtype dtype)
{
    struct line forward = line_begin("swiglu_forward", dtype);
    struct line backward = line_begin("swiglu_backward", dtype);
    for (int i = 0; i < CASES; i++) {
        int64_t n = some_length(100), m = some_length(700);
        struct both gate = both_make(dtype, n, m, -1, -8, 8),
                    up = both_make(dtype, n, m, -1, -2, 2);
        struct both out = both_make(dtype, n, m, -1, NAN, NAN);
        struct both d = both_make(dtype, n, m, -1, -1, 1);
        struct both dgate = both_make(dtype, n, m, -1, NAN, NAN);
        struct both dup = both_make(dtype, n, m, -1, NAN, NAN);
        cpu->swiglu_forward(cpu_queue, out.cpu, gate.cpu, up.cpu);
        gpu->swiglu_forward(gpu_queue, out.gpu, gate.gpu, up.gpu);
        line_check(&forward, &out);
        cpu->swiglu_backward(cpu_queue, dgate.cpu, dup.cpu, d.cpu, gate.cpu, up.cpu);
        gpu->swiglu_backward(gpu_queue, dgate.gpu, dup.gpu, d.gpu, gate.gpu, up.gpu);
        line_check(&backward, &dgate);
        line_check(&backward, &dup);
        FREE(&gate, &up, &out, &d, &dgate, &dup);
    }
    line_report(&forward);
    line_report(&backward);
}

static void cross_entropy(enum dtype dtype)
{
    struct line losses = line_begin("cross_entropy loss", DTYPE_F32);
    struct line gradients = line_begin("cross_entropy grad", dtype);
    losses.norm_limit = 1e-6;
    losses.element_limit = 1e-5;
    for (int i = 0; i < CASES; i++) {
        static const int64_t vocabularies[] = {151936, 250000, 32000, 151669};
        int64_t v = chance(0.1) ? vocabularies[pick(0, 3)] : pick(1, 5000);
        int64_t n = some_length(v > 5000 ? 8 : 60);
        struct both logits = both_make(dtype, n, v, -1, -10, 10);
        struct both loss = both_make(DTYPE_F32, n, -1, -1, NAN, NAN);
        struct both labels = both_i32(n, 0, v - 1);
        bool weighted = chance(0.7);
        struct both weights = weighted ? both_make(DTYPE_F32, n, -1, -1, 0, 3) : both_none();
        cpu->cross_entropy(cpu_queue, loss.cpu, logits.cpu, labels.cpu, weights.cpu);
        gpu->cross_entropy(gpu_queue, loss.gpu, logits.gpu, labels.gpu, weights.gpu);
        line_check(&losses, &loss);
        line_check(&gradients, &logits);
        FREE(&logits, &loss, &labels);
        if (weighted)
            both_free(&weights);
    }
    line_report(&losses);
    line_report(&gradients);
}

static void sum_squares(enum dtype dtype)
{
    struct line l = line_begin("sum_squares", DTYPE_F32);
    for (int i = 0; i < CASES; i++) {
        int64_t n = chance(0.5) ? some_length(300000) : some_length(300);
        int64_t m = n > 300 || chance(0.5) ? -1 : some_length(300);
        struct both x = both_make(dtype, n, m, -1, -2, 2),
                    out = both_make(DTYPE_F32, 1, -1, -1, 0, 1);
        cpu->sum_squares(cpu_queue, out.cpu, x.cpu);
        gpu->sum_squares(gpu_queue, out.gpu, x.gpu);
        line_check(&l, &out);
        FREE(&x, &out);
    }
    line_report(&l);
}

static void adamw(enum dtype gradient)
{
    struct line weights = line_begin("adamw", DTYPE_F32),
                copies = line_begin("adamw copy", DTYPE_BF16);
    for (int i = 0; i < CASES / 2; i++) {
        int64_t n = some_length(3000);
        struct both param = both_make(DTYPE_F32, n, -1, -1, -1, 1);
        struct both m = both_make(DTYPE_F32, n, -1, -1, 0, 0),
                    v = both_make(DTYPE_F32, n, -1, -1, 0, 0);
        bool with_copy = chance(0.5);
        struct both copy = both_make(DTYPE_BF16, n, -1, -1, NAN, NAN);
        struct tensor none = {0};
        for (int step = 1; step <= 5; step++) {
            struct adamw o = {.lr = 1e-2f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .eps = 1e-8f,
                              .weight_decay = chance(0.5) ? 0.1f : 0,
                              .grad_scale = uniform(0.1f, 2),
                              .step = step};
            struct both grad = both_make(gradient, n, -1, -1, -1, 1);
            cpu->adamw(cpu_queue, param.cpu, m.cpu, v.cpu, grad.cpu, with_copy ? copy.cpu : none,
                       &o);
            gpu->adamw(gpu_queue, param.gpu, m.gpu, v.gpu, grad.gpu, with_copy ? copy.gpu : none,
                       &o);
            both_free(&grad);
        }
        line_check(&weights, &param);
        line_check(&weights, &m);
        line_check(&weights, &v);
        if (with_copy)
            line_check(&copies, &copy);
        FREE(&param, &m, &v, &copy);
    }
    line_report(&weights);
    line_report(&copies);
}

/* A failed queue must name what was wrong, stay failed and hand it on. */
static void expect_failure(struct kernel_queue *q, const char *word)
{
    struct err *e = gpu->queue_wait(q);
    printf("  %s\n", e ? err_message(e) : "no failure");
    expect(e && strstr(err_message(e), word), word);
    err_free(e);
}

static void failures_are_told(void)
{
    struct kernel_queue *q, *other;
    struct kernel_event *event;
    must(gpu->event_create(&event));
    struct both x = both_make(DTYPE_F32, 5, 8, -1, -1, 1),
                y = both_make(DTYPE_F32, 3, 8, -1, -1, 1);
    struct both rows = both_i32(3, 5, 9), loss = both_make(DTYPE_F32, 3, -1, -1, NAN, NAN);
    puts("what a fault of the caller is told as:");
    for (int i = 0; i < 3; i++) {
        static const char *const words[] = {"gather_rows", "scatter_add_rows", "cross_entropy"};
        must(gpu->queue_create(&q));
        must(gpu->queue_create(&other));
        if (i == 0)
            gpu->gather_rows(q, y.gpu, x.gpu, rows.gpu);
        else if (i == 1)
            gpu->scatter_add_rows(q, x.gpu, y.gpu, rows.gpu);
        else
            gpu->cross_entropy(q, loss.gpu, tensor_columns(y.gpu, 0, 4), rows.gpu,
                               (struct tensor){0});
        expect_failure(q, words[i]);
        gpu->event_record(event, q);
        gpu->event_await(event, other);
        expect_failure(other, words[i]);
        gpu->queue_destroy(q);
        gpu->queue_destroy(other);
    }
    void *p;
    struct err *e = gpu->alloc((size_t)1 << 50, &p);
    printf("  %s\n", e ? err_message(e) : "no failure");
    expect(e && err_kind(e) == ERR_NO_MEMORY && !p, "too much memory");
    err_free(e);
    must(gpu->queue_wait(gpu_queue)); /* the others go on */
    gpu->event_destroy(event);
    FREE(&x, &y, &rows, &loss);
}

void test_ops(void)
{
    printf("%-22s %-5s %5s   %-16s   %-16s\n", "operation", "dtype", "cases", "norm (limit)",
           "element (limit)");
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++) {
            copy_casts(floats[i], floats[j]);
            add(floats[i], floats[j]);
        }
    for (int i = 0; i < 2; i++) {
        enum dtype d = computed[i];
        gather(d);
        scatter(d, d);
        matmul(d, d);
        bias(d);
        norms(d, d);
        rope(d);
        swiglu(d);
        cross_entropy(d);
        sum_squares(d);
        adamw(d);
    }
    scatter(DTYPE_F32, DTYPE_BF16);
    matmul(DTYPE_F32, DTYPE_BF16);
    norms(DTYPE_BF16, DTYPE_F32);
    failures_are_told();
}
