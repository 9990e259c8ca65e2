/* safetensors: what is written is read back, and nothing that is wrong is believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/file.h"
#include "store/safetensors.h"

static char directory[] = "/tmp/test-safetensors-XXXXXX";
static char path[64];

static int make_directory(void **state)
{
    (void)state;
    if (!mkdtemp(directory))
        return -1;
    snprintf(path, sizeof path, "%s/x.safetensors", directory);
    return 0;
}

static int remove_directory(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(directory);
}

static void ok(struct err *e)
{
    if (e)
        fail_msg("%s", err_message(e));
}

static void put(const void *bytes, size_t n)
{
    ok(file_replace(path, bytes, n));
}

/* A file of this header (single quotes stand for double ones) and data_bytes of zeros. */
static void put_header(const char *header, size_t data_bytes)
{
    uint64_t n = strlen(header);
    char *bytes = calloc(1, 8 + n + data_bytes);
    assert_non_null(bytes);
    memcpy(bytes, &n, 8);
    for (size_t i = 0; i < n; i++)
        bytes[8 + i] = header[i] == '\'' ? '"' : header[i];
    put(bytes, 8 + n + data_bytes);
    free(bytes);
}

static void expect_refused(const char *what, const char *says)
{
    struct safetensors *s;
    struct err *e = safetensors_open(path, &s);
    if (!e)
        fail_msg("%s was accepted", what);
    assert_null(s);
    assert_int_equal(err_kind(e), ERR_INVALID);
    if (!strstr(err_message(e), path) || !strstr(err_message(e), says))
        fail_msg("%s: the message is: %s", what, err_message(e));
    err_free(e);
}

static const float floats[6] = {1, -2.5f, 3e-30f, 0, INFINITY, 7};
static const uint16_t halves[4] = {0x3c00, 0xc000, 0x0001, 0x7c00}; /* 1, -2, 2^-24, inf */
static const uint16_t brains[2] = {0x3f80, 0xc0a0};                 /* 1, -5 */
static const int32_t integers[3] = {1, -1, 1 << 30};

static const struct safetensor sample[] = {
    {.name = "b.half", .dtype = SAFETENSORS_F16, .dims = 1, .shape = {4}, .data = halves},
    {.name = "a.brain", .dtype = SAFETENSORS_BF16, .dims = 1, .shape = {2}, .data = brains},
    {.name = "z.float", .dtype = SAFETENSORS_F32, .dims = 2, .shape = {2, 3}, .data = floats},
    {.name = "int \"\xc3\xa9", .dtype = SAFETENSORS_I32, .dims = 1, .shape = {3}, .data = integers},
    {.name = "empty", .dtype = SAFETENSORS_F32, .dims = 2, .shape = {0, 5}, .data = floats},
    {.name = "scalar", .dtype = SAFETENSORS_U8, .dims = 0, .data = "x"},
};
#define SAMPLES (sizeof sample / sizeof *sample)
static const struct safetensors_pair pairs[] = {{"step", "12"}, {"format", "pt"}};

static void round_trip(void **state)
{
    (void)state;
    ok(safetensors_write(path, sample, SAMPLES, pairs, 2));
    struct safetensors *s;
    ok(safetensors_open(path, &s));
    assert_string_equal(safetensors_path(s), path);
    assert_int_equal(safetensors_count(s), SAMPLES);
    assert_string_equal(safetensors_metadata(s, "step"), "12");
    assert_string_equal(safetensors_metadata(s, "format"), "pt");
    assert_null(safetensors_metadata(s, "z.float"));
    assert_null(safetensors_find(s, "z"));
    assert_string_equal(safetensors_at(s, 0)->name, "a.brain");
    assert_null(safetensors_at(s, SAMPLES));
    for (size_t i = 0; i < SAMPLES; i++) {
        const struct safetensor *t = safetensors_find(s, sample[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, sample[i].dtype);
        assert_int_equal(t->dims, sample[i].dims);
        assert_memory_equal(t->shape, sample[i].shape, sizeof t->shape);
        assert_memory_equal(t->data, sample[i].data, t->bytes);
        assert_int_equal(t->bytes, (size_t)t->elements * safetensors_dtype_bytes(t->dtype));
    }
    float values[6];
    ok(safetensors_read_f32(s, safetensors_find(s, "z.float"), 0, 6, values));
    assert_memory_equal(values, floats, sizeof floats);
    ok(safetensors_read_f32(s, safetensors_find(s, "z.float"), 4, 2, values));
    assert_memory_equal(values, floats + 4, 2 * sizeof *floats);
    ok(safetensors_read_f32(s, safetensors_find(s, "b.half"), 0, 4, values));
    assert_true(values[0] == 1 && values[1] == -2 && values[2] == 0x1p-24f && isinf(values[3]));
    ok(safetensors_read_f32(s, safetensors_find(s, "a.brain"), 1, 1, values));
    assert_true(values[0] == -5);

    struct err *e = safetensors_read_f32(s, safetensors_find(s, "scalar"), 0, 1, values);
    assert_non_null(e);
    assert_int_equal(err_kind(e), ERR_INVALID);
    assert_non_null(strstr(err_message(e), "scalar"));
    err_free(e);
    e = safetensors_read_f32(s, safetensors_find(s, "a.brain"), 1, 2, values);
    assert_non_null(e);
    err_free(e);
    safetensors_close(s);
    safetensors_close(NULL);
}

static void order_does_not_matter(void **state)
{
    (void)state;
    char *first, *second;
    size_t n, m;
    ok(safetensors_write(path, sample, SAMPLES, pairs, 2));
    ok(file_read(path, 1 << 20, &first, &n));
    struct safetensor turned[SAMPLES];
    struct safetensors_pair turned_pairs[] = {pairs[1], pairs[0]};
    for (size_t i = 0; i < SAMPLES; i++)
        turned[i] = sample[SAMPLES - 1 - i];
    ok(safetensors_write(path, turned, SAMPLES, turned_pairs, 2));
    ok(file_read(path, 1 << 20, &second, &m));
    assert_int_equal(n, m);
    assert_memory_equal(first, second, n);
    free(first);
    free(second);
}

static void large_conversion(void **state)
{
    (void)state;
    size_t n = 400001; /* more than one buffer */
    uint16_t *in = malloc(n * sizeof *in);
    float *out = malloc(n * sizeof *out);
    assert_non_null(in);
    assert_non_null(out);
    for (size_t i = 0; i < n; i++)
        in[i] = (uint16_t)(0x3f80 + i % 128); /* [1, 2) */
    struct safetensor t = {
        .name = "w", .dtype = SAFETENSORS_BF16, .dims = 1, .shape = {(int64_t)n}, .data = in};
    ok(safetensors_write(path, &t, 1, NULL, 0));
    struct safetensors *s;
    ok(safetensors_open(path, &s));
    ok(safetensors_read_f32(s, safetensors_find(s, "w"), 0, (int64_t)n, out));
    for (size_t i = 0; i < n; i++)
        if (out[i] != 1 + (float)(i % 128) / 128)
            fail_msg("element %zu is %g", i, (double)out[i]);

    assert_int_equal(truncate(path, 1000), 0);
    struct err *e = safetensors_read_f32(s, safetensors_find(s, "w"), 0, (int64_t)n, out);
    assert_non_null(e);
    assert_int_equal(err_kind(e), ERR_IO);
    err_free(e);
    safetensors_close(s);
    free(in);
    free(out);
}

static void every_cut(void **state)
{
    (void)state;
    char *whole;
    size_t n;
    ok(safetensors_write(path, sample, SAMPLES, pairs, 2));
    ok(file_read(path, 1 << 20, &whole, &n));
    for (size_t cut = 0; cut < n; cut++) {
        put(whole, cut);
        expect_refused("a cut file", "");
    }
    char *longer = calloc(1, n + 1);
    assert_non_null(longer);
    memcpy(longer, whole, n);
    put(longer, n + 1);
    expect_refused("a file with a byte too many", "1 bytes behind");
    free(longer);
    free(whole);
}

/* Each bit of a small file turned over: refused or read, never a crash. */
static void every_flip(void **state)
{
    (void)state;
    char *whole;
    size_t n, refused = 0;
    ok(safetensors_write(path, sample + 1, 1, pairs, 1));
    ok(file_read(path, 1 << 20, &whole, &n));
    for (size_t bit = 0; bit < 8 * n; bit++) {
        whole[bit / 8] ^= (char)(1 << bit % 8);
        /* Written in place: syncing a thousand files would take a while. */
        FILE *f = fopen(path, "wb");
        assert_non_null(f);
        assert_int_equal(fwrite(whole, 1, n, f), n);
        fclose(f);
        struct safetensors *s;
        struct err *e = safetensors_open(path, &s);
        float values[64];
        if (e)
            refused++;
        for (size_t i = 0; s && i < safetensors_count(s); i++) {
            const struct safetensor *t = safetensors_at(s, i);
            if (t->elements <= 64)
                err_free(safetensors_read_f32(s, t, 0, t->elements, values));
        }
        err_free(e);
        safetensors_close(s);
        whole[bit / 8] ^= (char)(1 << bit % 8);
    }
    assert_true(refused > 8 * n / 2);
    free(whole);
}

static void wrong_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *says;
    } cases[] = {
        {"[]", 0, "'{'"},
        {"", 0, "'{'"},
        {" {}", 0, "'{'"},
        {"{", 0, "line 1"},
        {"{}x", 0, "more text"},
        {"{'w':1}", 4, "tensor w: its header entry is not an object"},
        {"{'w':{'shape':[1],'data_offsets':[0,4]}}", 4, "tensor w: dtype is missing"},
        {"{'w':{'dtype':'F31','shape':[1],'data_offsets':[0,4]}}", 4, "dtype F31 is not known"},
        {"{'w':{'dtype':'F32','data_offsets':[0,4]}}", 4, "shape is missing"},
        {"{'w':{'dtype':'F32','shape':[-1],'data_offsets':[0,4]}}", 4, "something else"},
        {"{'w':{'dtype':'F32','shape':[1.5],'data_offsets':[0,4]}}", 4, "something else"},
        {"{'w':{'dtype':'F32','shape':['1'],'data_offsets':[0,4]}}", 4, "something else"},
        {"{'w':{'dtype':'F32','shape':[1,1,1,1,1,1,1,1,1],'data_offsets':[0,4]}}", 4, "8 dim"},
        {"{'w':{'dtype':'F32','shape':[4294967296,4294967296],'data_offsets':[0,4]}}", 4,
         "too large"},
        {"{'w':{'dtype':'F64','shape':[2305843009213693952],'data_offsets':[0,0]}}", 0, ""},
        {"{'w':{'dtype':'F32','shape':[1]}}", 4, "data_offsets"},
        {"{'w':{'dtype':'F32','shape':[1],'data_offsets':[4,0]}}", 4, "rising"},
        {"{'w':{'dtype':'F32','shape':[1],'data_offsets':[0,4,8]}}", 4, "rising"},
        {"{'w':{'dtype':'F32','shape':[1],'data_offsets':[0,8]}}", 4, "cut off"},
        {"{'w':{'dtype':'F32','shape':[1],'data_offsets':[0,1e300]}}", 4, "rising"},
        {"{'w':{'dtype':'F32','shape':[2],'data_offsets':[0,4]}}", 4, "span 4"},
        {"{'w':{'dtype':'F32','shape':[1],'data_offsets':[4,8]}}", 8, "hole"},
        {"{'w':{'dtype':'F32','shape':[1],'data_offsets':[0,4]}}", 8, "4 bytes behind"},
        {"{'v':{'dtype':'F32','shape':[2],'data_offsets':[0,8]},"
         "'w':{'dtype':'F32','shape':[1],'data_offsets':[4,8]}}",
         8, "tensor w: it overlaps"},
        {"{'w':{'dtype':'F32','shape':[1],'data_offsets':[0,4]},"
         "'w':{'dtype':'F32','shape':[1],'data_offsets':[4,8]}}",
         8, "tensor w: it stands twice"},
        {"{'__metadata__':[]}", 0, "__metadata__ is not an object"},
        {"{'__metadata__':{'a':1}}", 0, "__metadata__/a is not a string"},
        {"{'__metadata__':{},'__metadata__':{}}", 0, "twice"},
        {"{'w\\u0000':{'dtype':'F32','shape':[1],'data_offsets':[0,4]}}", 4, "\\u0000"},
        {"{'w\xff':{'dtype':'F32','shape':[1],'data_offsets':[0,4]}}", 4, "0xff is not UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_header(cases[i].header, cases[i].data_bytes);
        expect_refused(cases[i].header, cases[i].says);
    }

    uint64_t huge[2] = {UINT64_MAX, 0};
    put(huge, sizeof huge);
    expect_refused("a header of 2^64 - 1 bytes", "claims a header");
    put_header("{}", 0);
    struct safetensors *s;
    ok(safetensors_open(path, &s)); /* no tensors at all is a valid file */
    assert_int_equal(safetensors_count(s), 0);
    assert_null(safetensors_find(s, "w"));
    safetensors_close(s);
    put_header("{'__metadata__':{'a':'b'},'w':{'dtype':'F32','shape':[1],'data_offsets':[0,4]}}  ",
               4);
    ok(safetensors_open(path, &s));
    assert_string_equal(safetensors_metadata(s, "a"), "b");
    safetensors_close(s);
}

static void deep_nesting(void **state)
{
    (void)state;
    char text[8 + 100000];
    uint64_t n = sizeof text - 8;
    memcpy(text, &n, 8);
    text[8] = '{';
    text[9] = text[11] = '"';
    text[10] = 'a';
    text[12] = ':';
    memset(text + 13, '[', sizeof text - 13);
    put(text, sizeof text);
    expect_refused("deep nesting", "line 1");
}

static void no_such_file(void **state)
{
    (void)state;
    struct safetensors *s;
    unlink(path);
    struct err *e = safetensors_open(path, &s);
    assert_non_null(e);
    assert_int_equal(err_kind(e), ERR_NOT_FOUND);
    err_free(e);
    e = safetensors_open(directory, &s);
    assert_non_null(e);
    assert_non_null(strstr(err_message(e), "not a regular file"));
    err_free(e);

    struct safetensor twice[] = {sample[0], sample[0]};
    e = safetensors_write(path, twice, 2, NULL, 0);
    assert_non_null(e);
    err_free(e);
    assert_int_equal(access(path, F_OK), -1);
    e = safetensors_write("/nonexistent/x", sample, 1, NULL, 0);
    assert_non_null(e);
    assert_int_equal(err_kind(e), ERR_IO);
    err_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),       cmocka_unit_test(order_does_not_matter),
        cmocka_unit_test(large_conversion), cmocka_unit_test(every_cut),
        cmocka_unit_test(every_flip),       cmocka_unit_test(wrong_headers),
        cmocka_unit_test(deep_nesting),     cmocka_unit_test(no_such_file),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
