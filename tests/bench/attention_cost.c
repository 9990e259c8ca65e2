/* What interval attention costs per visible (query, key) pair.
 *
 * attention_cost [rows [query heads [kv heads [head dimension]]]]
 *
 * Forward and backward over several patterns of visibility. All patterns take their turn in each of
 * several rounds and the best round counts, so that a busy moment of the machine falls on all. The
 * last columns divide each pattern's time per visible pair by the causal pattern's: 1 means that
 * cost follows what is visible, and nothing is paid for what is not. GFLOP/s count visible pairs
 * alone (4 d a pair and head forward, 10 d backward); the first line gives, as the yardstick, what
 * one large matrix product of the same backend reaches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kernels/kernels.h"

#define REPEATS 5
#define BLOCK 32

static const struct kernels *kernels;
static struct kernel_queue *queue;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void give_up(struct err *e)
{
    fprintf(stderr, "attention_cost: %s\n", err_message(e));
    exit(1);
}

static struct tensor make(int64_t n, int64_t heads, int64_t d)
{
    void *data;
    struct err *e = kernels->alloc((size_t)(n * heads * d) * sizeof(float), &data);
    if (e)
        give_up(e);
    float *x = data;
    for (int64_t i = 0; i < n * heads * d; i++)
        x[i] = (float)(i * 7919 % 1000) * 1e-3f - 0.5f;
    return tensor_3d(data, DTYPE_F32, DEVICE_CPU, n, heads, d);
}

static double product_gflops(void)
{
    const int64_t n = 1024;
    struct tensor a = tensor_flat(make(n, n, 1)), b = tensor_flat(make(n, n, 1)),
                  c = tensor_flat(make(n, n, 1));
    double best = 0;
    for (int i = 0; i < REPEATS; i++) {
        double begin = now_s();
        kernels->matmul(queue, c, a, false, b, false, 1.0f, 0.0f);
        double rate = 2.0 * (double)(n * n * n) / (now_s() - begin) * 1e-9;
        best = rate > best ? rate : best;
    }
    kernels->release(a.data);
    kernels->release(b.data);
    kernels->release(c.data);
    return best;
}

enum pattern { CAUSAL, BLOCK_DIFFUSION, WINDOW, DOCUMENTS, PATTERNS };
static const char *const names[] = {
    [CAUSAL] = "causal",
    [BLOCK_DIFFUSION] = "block diffusion, b=32",
    [WINDOW] = "causal, window L/8",
    [DOCUMENTS] = "documents of 24..232",
};

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Fills the intervals of both pieces; returns how many pieces there are. */
static int see(enum pattern pattern, struct key_interval *first, struct key_interval *second,
               int64_t rows)
{
    int64_t document = 0, end = 0;
    for (int64_t i = 0; i < rows; i++) {
        int64_t block = i / BLOCK * BLOCK;
        if (i == end) {
            document = end;
            end += 24 + document * 13 % 209;
        }
        switch (pattern) {
        case CAUSAL:
            first[i] = (struct key_interval){0, i + 1};
            break;
        case BLOCK_DIFFUSION:
            first[i] = (struct key_interval){0, block};
            second[i] = (struct key_interval){block, min(block + BLOCK, rows)};
            break;
        case WINDOW:
            first[i] = (struct key_interval){i < rows / 8 ? 0 : i + 1 - rows / 8, i + 1};
            break;
        default:
            first[i] = (struct key_interval){document, i + 1};
        }
    }
    return pattern == BLOCK_DIFFUSION ? 2 : 1;
}

struct result {
    int64_t pairs;
    double forward_s, backward_s; /* the best round's */
};

static void time_once(double *best,
                      void (*operation)(struct kernel_queue *, const struct attention *),
                      const struct attention *a)
{
    double begin = now_s();
    operation(queue, a);
    double time_s = now_s() - begin;
    *best = *best == 0 || time_s < *best ? time_s : *best;
}

int main(int argc, char **argv)
{
    int64_t sizes[] = {4096, 8, 4, 64};
    for (int i = 1; i < argc && i <= 4; i++)
        sizes[i - 1] = atoll(argv[i]);
    int64_t rows = sizes[0], heads = sizes[1], kv_heads = sizes[2], d = sizes[3];
    if (rows < 8 || kv_heads < 1 || heads < 1 || heads % kv_heads || d < 1) {
        fprintf(stderr, "usage: attention_cost [rows [query heads [kv heads [dimension]]]]\n");
        return 2;
    }
    kernels = kernels_cpu();
    struct err *e = kernels->queue_create(&queue);
    if (e)
        give_up(e);
    struct key_interval *intervals[2];
    struct key_chunk chunk = {0, rows, 0};
    struct attention a = {.q = make(rows, heads, d),
                          .o = make(rows, heads, d),
                          .d_o = make(rows, heads, d),
                          .dq = make(rows, heads, d),
                          .lse = tensor_flat(make(rows, heads, 1)),
                          .delta = tensor_flat(make(rows, heads, 1)),
                          .scale = 0.125f};
    for (int i = 0; i < 2; i++) {
        intervals[i] = calloc((size_t)rows, sizeof **intervals);
        if (!intervals[i])
            give_up(err_no_memory());
        a.pieces[i] = (struct attention_piece){.k = make(rows, kv_heads, d),
                                               .v = make(rows, kv_heads, d),
                                               .dk = make(rows, kv_heads, d),
                                               .dv = make(rows, kv_heads, d),
                                               .chunks = &chunk,
                                               .n_chunks = 1,
                                               .intervals = intervals[i]};
    }
    printf("L %lld, %lld query heads, %lld kv heads, d %lld; a 1024^3 product: %.0f GFLOP/s\n",
           (long long)rows, (long long)heads, (long long)kv_heads, (long long)d, product_gflops());
    printf("%-22s %12s %9s %8s %9s %8s   %s\n", "", "visible", "forward", "", "backward", "",
           "time a pair / causal");
    printf("%-22s %12s %9s %8s %9s %8s %9s %9s\n", "pattern", "pairs", "ms", "GFLOP/s", "ms",
           "GFLOP/s", "forward", "backward");
    struct result results[PATTERNS] = {0};
    for (int round = 0; round < REPEATS; round++)
        for (int pattern = 0; pattern < PATTERNS; pattern++) {
            struct result *r = &results[pattern];
            a.n_pieces = see(pattern, intervals[0], intervals[1], rows);
            r->pairs = 0;
            for (int p = 0; p < a.n_pieces; p++)
                for (int64_t i = 0; i < rows; i++)
                    r->pairs += intervals[p][i].end - intervals[p][i].begin;
            time_once(&r->forward_s, kernels->attention_forward, &a);
            kernels->attention_delta(queue, &a);
            time_once(&r->backward_s, kernels->attention_backward, &a);
        }
    const struct result *causal = &results[CAUSAL];
    for (int pattern = 0; pattern < PATTERNS; pattern++) {
        const struct result *r = &results[pattern];
        double work = (double)(r->pairs * heads * d);
        double share = (double)r->pairs / (double)causal->pairs;
        printf("%-22s %12lld %9.2f %8.1f %9.2f %8.1f %9.2f %9.2f\n", names[pattern],
               (long long)r->pairs, r->forward_s * 1e3, 4 * work / r->forward_s * 1e-9,
               r->backward_s * 1e3, 10 * work / r->backward_s * 1e-9,
               r->forward_s / causal->forward_s / share,
               r->backward_s / causal->backward_s / share);
    }
    e = kernels->queue_wait(queue);
    if (e)
        give_up(e);
    kernels->queue_destroy(queue);
    struct tensor owned[] = {
        a.q,           a.o,           a.d_o,          a.dq,           a.lse,
        a.delta,       a.pieces[0].k, a.pieces[0].v,  a.pieces[0].dk, a.pieces[0].dv,
        a.pieces[1].k, a.pieces[1].v, a.pieces[1].dk, a.pieces[1].dv};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        kernels->release(owned[i].data);
    free(intervals[0]);
    free(intervals[1]);
    return 0;
}
