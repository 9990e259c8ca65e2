#include "tests/cuda/both.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GAP 12345.0f

const struct kernels *cpu, *gpu;
struct kernel_queue *cpu_queue, *gpu_queue;

static uint64_t random_state = 88172645463325252u;
static int failed;

void must(struct err *e)
{
    if (!e)
        return;
    fprintf(stderr, "%s\n", err_message(e));
    exit(1);
}

/* xorshift64* */
uint64_t random_bits(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * 2685821657736338717u;
}

float uniform(float low, float high)
{
    return low + (high - low) * (float)(random_bits() >> 40) * 0x1p-24f;
}

int64_t pick(int64_t low, int64_t high)
{
    return low + (int64_t)(random_bits() >> 16) % (high - low + 1);
}

bool chance(double p)
{
    return uniform(0, 1) < p;
}

int64_t some_length(int64_t most)
{
    if (chance(0.03))
        return 0;
    if (chance(0.5))
        return 8 * pick(1, most / 8);
    return pick(1, most);
}

static int64_t rows_of(const struct tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->dims - 1; i++)
        n *= t->shape[i];
    return n;
}

static int64_t columns_of(const struct tensor *t)
{
    return t->shape[t->dims - 1];
}

static int64_t row_at(const struct tensor *t, int64_t row)
{
    if (t->dims == 1)
        return 0;
    if (t->dims == 2)
        return row * t->stride[0];
    return row / t->shape[1] * t->stride[0] + row % t->shape[1] * t->stride[1];
}

static struct tensor shaped(void *data, enum dtype dtype, enum device device, int64_t n, int64_t m,
                            int64_t k)
{
    return k >= 0   ? tensor_3d(data, dtype, device, n, m, k)
           : m >= 0 ? tensor_2d(data, dtype, device, n, m)
                    : tensor_1d(data, dtype, device, n);
}

static void *take(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p)
        must(err_no_memory());
    return p;
}

/* n values of the dtype to and from fp32, by the CPU backend. */
static void convert(void *to, enum dtype to_dtype, const void *from, enum dtype from_dtype,
                    int64_t n)
{
    cpu->copy(cpu_queue, tensor_1d(to, to_dtype, DEVICE_CPU, n),
              tensor_1d((void *)from, from_dtype, DEVICE_CPU, n));
}

/* n times the GAP. */
static void fill_gap(void *image, enum dtype dtype, int64_t n)
{
    float *gaps = take((size_t)n * sizeof *gaps);
    for (int64_t i = 0; i < n; i++)
        gaps[i] = GAP;
    convert(image, dtype, gaps, DTYPE_F32, n);
    free(gaps);
}

/* Rows that follow each other, rows apart by a multiple of 8 elements, or by any number. */
static void choose_strides(struct both *b)
{
    int64_t step = chance(0.5) ? 0 : chance(0.5) ? 8 : 1;
    struct tensor *t = &b->gpu;
    if (t->dims == 3)
        t->stride[1] += step * pick(0, 3);
    if (t->dims >= 2)
        t->stride[0] = t->stride[1] * t->shape[1] + step * pick(0, 5);
    if (t->dims == 2 && !step)
        t->stride[0] = t->shape[1];
    b->offset = step == 1 && chance(0.5) ? pick(1, 7) : 0;
    int64_t rows = rows_of(t), columns = columns_of(t);
    b->span = rows && columns ? row_at(t, rows - 1) + columns : 0;
}

struct both both_make(enum dtype dtype, int64_t n, int64_t m, int64_t k, float low, float high)
{
    struct both b = {.cpu = shaped(NULL, DTYPE_F32, DEVICE_CPU, n, m, k),
                     .gpu = shaped(NULL, dtype, DEVICE_CUDA, n, m, k)};
    choose_strides(&b);
    int64_t rows = rows_of(&b.cpu), columns = columns_of(&b.cpu), count = rows * columns;
    size_t size = dtype_size(dtype), bytes = (size_t)(b.offset + b.span) * size;
    float *values = take((size_t)count * sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = low < high ? uniform(low, high) : low;
    char *packed = take((size_t)count * size), *image = take(bytes);
    convert(packed, dtype, values, DTYPE_F32, count);
    convert(values, DTYPE_F32, packed, dtype, count);
    fill_gap(image, dtype, b.offset + b.span);
    for (int64_t i = 0; i < rows; i++)
        memcpy(image + (size_t)(b.offset + row_at(&b.gpu, i)) * size,
               packed + (size_t)(i * columns) * size, (size_t)columns * size);
    must(gpu->alloc(bytes, &b.block));
    gpu->upload(gpu_queue, b.block, image, bytes);
    must(gpu->queue_wait(gpu_queue));
    b.gpu.data = (char *)b.block + (size_t)b.offset * size;
    b.cpu.data = values;
    free(packed);
    free(image);
    return b;
}

struct both both_i32(int64_t n, int64_t low, int64_t high)
{
    struct both b = {.cpu = tensor_1d(NULL, DTYPE_I32, DEVICE_CPU, n),
                     .gpu = tensor_1d(NULL, DTYPE_I32, DEVICE_CUDA, n),
                     .span = n};
    int32_t *values = take((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++)
        values[i] = (int32_t)pick(low, high);
    b.cpu.data = values;
    must(gpu->alloc((size_t)n * sizeof *values, &b.block));
    b.gpu.data = b.block;
    both_upload_i32(&b);
    return b;
}

void both_upload_i32(const struct both *b)
{
    gpu->upload(gpu_queue, b->gpu.data, b->cpu.data, (size_t)b->span * sizeof(int32_t));
    must(gpu->queue_wait(gpu_queue));
}

struct both both_none(void)
{
    return (struct both){0};
}

void both_free(struct both *b)
{
    free(b->cpu.data);
    gpu->release(b->block);
    *b = both_none();
}

float *both_download(const struct both *b, const char *what)
{
    const struct tensor *t = &b->gpu;
    size_t size = dtype_size(t->dtype), bytes = (size_t)(b->offset + b->span) * size;
    int64_t rows = rows_of(t), columns = columns_of(t), n = b->offset + b->span;
    char *image = take(bytes);
    float *all = take((size_t)n * sizeof *all), *values;
    values = take((size_t)(rows * columns) * sizeof *values);
    gpu->download(gpu_queue, image, b->block, bytes);
    must(gpu->queue_wait(gpu_queue));
    convert(all, DTYPE_F32, image, t->dtype, n);
    float gap, given;
    fill_gap(&gap, t->dtype, 1);
    convert(&given, DTYPE_F32, &gap, t->dtype, 1);
    int64_t next = 0;
    for (int64_t i = 0; i < rows && columns; i++) {
        int64_t begin = b->offset + row_at(t, i);
        for (; next < begin; next++)
            expect(all[next] == given, what);
        memcpy(values + i * columns, all + begin, (size_t)columns * sizeof *values);
        next = begin + columns;
    }
    free(image);
    free(all);
    return values;
}

/* ---- The table ---- */

struct line line_begin(const char *what, enum dtype dtype)
{
    bool full = dtype == DTYPE_F32;
    return (struct line){.what = what,
                         .dtype = dtype,
                         .norm_limit = full ? 2e-6 : 4e-3,
                         .element_limit = full ? 2e-5 : 2e-2};
}

void line_check(struct line *l, const struct both *b)
{
    float *values = both_download(b, l->what);
    const float *reference = b->cpu.data;
    int64_t n = rows_of(&b->cpu) * columns_of(&b->cpu);
    double square = 0, off = 0;
    for (int64_t i = 0; i < n; i++) {
        square += (double)reference[i] * reference[i];
        off += ((double)values[i] - reference[i]) * ((double)values[i] - reference[i]);
    }
    double rms = n ? sqrt(square / (double)n) : 0;
    double norm = n ? sqrt(off) / (sqrt(square) + 1e-30) : 0;
    if (!(norm <= l->norm))
        l->norm = norm;
    for (int64_t i = 0; i < n; i++) {
        double element =
            fabs((double)values[i] - reference[i]) / (rms + fabs(reference[i]) + 1e-30);
        if (!(element <= l->element))
            l->element = element;
    }
    l->cases++;
    free(values);
}

void line_report(const struct line *l)
{
    bool right = l->norm <= l->norm_limit && l->element <= l->element_limit;
    printf("%-22s %-5s %5" PRId64 "   %8.1e (%.0e)   %8.1e (%.0e)   %s\n", l->what,
           dtype_name(l->dtype), l->cases, l->norm, l->norm_limit, l->element, l->element_limit,
           right ? "right" : "WRONG");
    failed += !right;
}

void expect(bool right, const char *what)
{
    if (right)
        return;
    if (failed++ < 20)
        printf("%s: WRONG\n", what);
}

int failures(void)
{
    return failed;
}
