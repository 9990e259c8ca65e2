/* Memory, queues, events, views, copies and casts, rows by index. */
#include <stdio.h>

#include "kernels/cpu/cpu.h"
#include "tests/unit/test_kernels_random.h"

/* An allocation that the machine cannot give must come back as NULL under ASan too. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void alloc_aligns_and_reports_what_it_cannot_give(void **state)
{
    (void)state;
    void *p;
    for (size_t bytes = 0; bytes < 2000; bytes += 123) {
        assert_null(kernels->alloc(bytes, &p));
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 256, 0);
        memset(p, 1, bytes);
        kernels->release(p);
        assert_null(kernels->host_alloc(bytes, &p));
        memset(p, 1, bytes);
        kernels->host_release(p);
    }
    kernels->release(NULL);
    static const size_t impossible[] = {SIZE_MAX, SIZE_MAX - 255, PTRDIFF_MAX, (size_t)1 << 60};
    for (int i = 0; i < 4; i++) {
        struct err *e = kernels->alloc(impossible[i], &p);
        assert_non_null(e);
        assert_null(p);
        assert_int_equal(err_kind(e), ERR_NO_MEMORY);
        char bytes[32];
        snprintf(bytes, sizeof bytes, "%zu", impossible[i]);
        assert_non_null(strstr(err_message(e), bytes));
        err_free(e);
    }
}

static void assert_failed(struct kernel_queue *q)
{
    struct err *e = kernels->queue_wait(q);
    assert_non_null(e);
    assert_int_equal(err_kind(e), ERR_NO_MEMORY);
    assert_non_null(strstr(err_message(e), "scratch"));
    err_free(e);
}

static void a_queue_keeps_its_first_failure_and_does_nothing_more(void **state)
{
    (void)state;
    struct kernel_queue *q, *other, *third;
    struct kernel_event *e;
    assert_null(kernels->queue_create(&q));
    assert_null(kernels->queue_create(&other));
    assert_null(kernels->queue_create(&third));
    assert_null(kernels->event_create(&e));
    struct tensor x = random_tensor(5, 8, -1, -1, 1), before = clone(x);

    kernels->event_record(e, q);
    kernels->event_await(e, third);
    assert_null(kernels->queue_wait(third));
    assert_true(kernels->event_between_s(e, e) == 0);

    assert_null(cpu_scratch(q, SIZE_MAX / 2 + 1));
    assert_failed(q);
    cpu_fail(q, err_new(ERR_INTERNAL, "a second failure"));
    assert_failed(q);

    struct tensor wide = random_tensor(5, 4, 2, 1, 2), w = random_tensor(8, -1, -1, 1, 2);
    struct tensor heads = tensor_3d(x.data, DTYPE_F32, DEVICE_CPU, 5, 4, 2);
    heads.stride[0] = x.stride[0];
    struct tensor some = random_tensor(5, 8, -1, 1, 2), one = random_tensor(1, -1, -1, 0, 0);
    struct tensor rows = random_i32(5, 0, 4), line = random_tensor(5, -1, -1, 1, 2);
    struct tensor square = random_tensor(8, 8, -1, 1, 2);
    struct tensor flat = tensor_1d(x.data, DTYPE_F32, DEVICE_CPU, 8);
    struct adamw options = {.lr = 1, .step = 1};
    struct key_interval interval[5] = {{0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}};
    struct key_chunk chunk = {0, 5, 0};
    struct attention a = {.q = wide,
                          .o = heads,
                          .lse = random_tensor(5, 4, -1, 1, 2),
                          .delta = random_tensor(5, 4, -1, 1, 2),
                          .d_o = wide,
                          .dq = heads,
                          .scale = 1,
                          .n_pieces = 1,
                          .pieces = {{.k = wide,
                                      .v = wide,
                                      .dk = wide,
                                      .dv = wide,
                                      .chunks = &chunk,
                                      .n_chunks = 1,
                                      .intervals = interval}}};
    struct tensor delta = clone(a.delta);
    kernels->upload(q, x.data, some.data, 20);
    kernels->download(q, x.data, some.data, 20);
    kernels->fill_zero(q, x.data, 20);
    kernels->copy(q, x, some);
    kernels->add(q, x, some, 1);
    kernels->gather_rows(q, x, some, rows);
    kernels->scatter_add_rows(q, x, some, rows);
    kernels->matmul(q, x, some, false, square, false, 1, 0);
    kernels->bias_forward(q, x, w);
    kernels->bias_backward(q, flat, some);
    kernels->rmsnorm_forward(q, x, line, some, w, 1e-6f);
    kernels->rmsnorm_backward(q, x, flat, some, some, w, line);
    kernels->rope(q, heads, rows, random_tensor(1, -1, -1, 1, 1), false);
    kernels->swiglu_forward(q, x, some, some);
    kernels->swiglu_backward(q, x, x, some, some, some);
    kernels->attention_forward(q, &a);
    kernels->attention_delta(q, &a);
    kernels->attention_backward(q, &a);
    kernels->cross_entropy(q, line, x, rows, line);
    kernels->sum_squares(q, one, x);
    kernels->adamw(q, flat, flat, flat, w, (struct tensor){0}, &options);
    check_equal("what a failed queue should have left alone", x, before);
    check_equal("delta", a.delta, delta);
    assert_true(*(float *)one.data == 0);

    kernels->event_record(e, q);
    kernels->event_await(e, other);
    assert_failed(other);
    kernels->event_destroy(e);
    kernels->event_destroy(NULL);
    kernels->queue_destroy(q);
    kernels->queue_destroy(other);
    kernels->queue_destroy(third);
    kernels->queue_destroy(NULL);
    free_all();
}

static void views_address_what_they_say(void **state)
{
    (void)state;
    float data[60];
    struct tensor t = tensor_2d(data, DTYPE_F32, DEVICE_CPU, 5, 12);
    assert_int_equal(tensor_elements(t), 60);
    struct tensor rows = tensor_rows(t, 2, 3);
    assert_ptr_equal(rows.data, data + 24);
    assert_int_equal(rows.shape[0], 3);
    struct tensor columns = tensor_columns(rows, 4, 6);
    assert_ptr_equal(columns.data, data + 28);
    assert_int_equal(columns.shape[1], 6);
    assert_int_equal(columns.stride[0], 12);
    struct tensor heads = tensor_heads(columns, 3);
    assert_int_equal(heads.dims, 3);
    assert_int_equal(heads.shape[2], 2);
    assert_ptr_equal(at(&heads, 1 * 3 + 2, 1), data + 24 + 12 + 4 + 2 * 2 + 1);
    struct tensor flat = tensor_flat(heads);
    assert_int_equal(flat.dims, 2);
    assert_int_equal(flat.shape[1], 6);
    assert_int_equal(flat.stride[0], 12);
    assert_int_equal(tensor_elements(tensor_3d(data, DTYPE_U8, DEVICE_CPU, 2, 3, 4)), 24);
    assert_int_equal(tensor_rows(tensor_1d(data, DTYPE_F32, DEVICE_CPU, 60), 7, 2).shape[0], 2);
    struct tensor nothing = tensor_rows(tensor_2d(NULL, DTYPE_F32, DEVICE_CPU, 0, 4), 0, 0);
    assert_null(nothing.data);
    assert_int_equal(tensor_elements(nothing), 0);
}

static void a_dtype_has_a_size_and_a_name(void **state)
{
    (void)state;
    static const size_t sizes[] = {4, 2, 2, 4, 1};
    static const char *const names[] = {"f32", "bf16", "f16", "i32", "u8"};
    for (int d = DTYPE_F32; d <= DTYPE_U8; d++) {
        assert_int_equal(dtype_size((enum dtype)d), sizes[d]);
        assert_string_equal(dtype_name((enum dtype)d), names[d]);
    }
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The value of a 16-bit number with `mantissa` bits of mantissa, from the definition. */
static double value_of(uint16_t h, int mantissa)
{
    int exponent_bits = 15 - mantissa, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (h >> mantissa) & ((1 << exponent_bits) - 1),
        fraction = h & ((1 << mantissa) - 1);
    double sign = h & 0x8000 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1)
        return fraction ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - mantissa);
    return sign * ldexp((1 << mantissa) + fraction, exponent - bias - mantissa);
}

static uint16_t cast_down(float x, enum dtype dtype)
{
    uint16_t h = 0xdead;
    kernels->copy(queue, tensor_1d(&h, dtype, DEVICE_CPU, 1),
                  tensor_1d(&x, DTYPE_F32, DEVICE_CPU, 1));
    return h;
}

static const struct half {
    enum dtype dtype;
    int mantissa;
} halves[] = {{DTYPE_BF16, 7}, {DTYPE_F16, 10}};

static void every_half_converts_to_its_value_and_back(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        uint16_t *all = take(65536 * sizeof *all), *back = take(65536 * sizeof *back);
        float *wide = take(65536 * sizeof *wide);
        for (int i = 0; i < 65536; i++)
            all[i] = (uint16_t)i;
        struct tensor t = tensor_1d(all, halves[f].dtype, DEVICE_CPU, 65536);
        struct tensor w = tensor_1d(wide, DTYPE_F32, DEVICE_CPU, 65536);
        struct tensor b = tensor_1d(back, halves[f].dtype, DEVICE_CPU, 65536);
        kernels->copy(queue, w, t);
        kernels->copy(queue, b, w);
        for (int i = 0; i < 65536; i++) {
            double expected = value_of((uint16_t)i, halves[f].mantissa);
            if (isnan(expected)) {
                assert_true(isnan(wide[i]));
                assert_true(isnan(value_of(back[i], halves[f].mantissa)));
                continue;
            }
            assert_true(wide[i] == expected && !signbit(wide[i]) == !signbit(expected));
            assert_int_equal(back[i], i);
        }
        free_all();
    }
}

/* Nearest, and the even one of two that are as near: every pair of neighbours, their middle, and
 * what lies just beside the middle. */
static void casts_round_to_nearest_even(void **state)
{
    (void)state;
    for (int f = 0; f < 2; f++) {
        int largest = f == 0 ? 0x7f7f : 0x7bff;
        for (int i = 0; i < largest; i++) {
            double low = value_of((uint16_t)i, halves[f].mantissa);
            double high = value_of((uint16_t)(i + 1), halves[f].mantissa);
            float middle = (float)((low + high) / 2); /* exact */
            uint16_t even = (uint16_t)(i % 2 ? i + 1 : i);
            assert_int_equal(cast_down(middle, halves[f].dtype), even);
            assert_int_equal(cast_down(-middle, halves[f].dtype), even | 0x8000);
            assert_int_equal(cast_down(nextafterf(middle, 0), halves[f].dtype), i);
            assert_int_equal(cast_down(nextafterf(middle, INFINITY), halves[f].dtype), i + 1);
        }
        uint16_t infinite = (uint16_t)(largest + 1);
        float beyond = f == 0 ? from_bits(0x7f7f8000) : 65520.0f;
        assert_int_equal(cast_down(beyond, halves[f].dtype), infinite);
        assert_int_equal(cast_down(nextafterf(beyond, 0), halves[f].dtype), largest);
        assert_int_equal(cast_down(INFINITY, halves[f].dtype), infinite);
        assert_int_equal(cast_down(-INFINITY, halves[f].dtype), infinite | 0x8000);
        assert_int_equal(cast_down(-0.0f, halves[f].dtype), 0x8000);
        assert_int_equal(cast_down(0x1p-149f, halves[f].dtype), 0);
        /* NaNs whose payload is only in the bits that are cut off. */
        static const uint32_t nans[] = {0x7f800001, 0xff800001, 0x7fffffff, 0x7fc00000};
        for (int i = 0; i < 4; i++)
            assert_true(isnan(
                value_of(cast_down(from_bits(nans[i]), halves[f].dtype), halves[f].mantissa)));
    }
}

/* A tensor of any floating dtype with the values of an fp32 one. */
static struct tensor as(struct tensor t, enum dtype dtype)
{
    struct tensor h = clone(t);
    if (dtype == DTYPE_F32)
        return h;
    h.dtype = dtype;
    kernels->copy(queue, h, t);
    return h;
}

static double element(const struct tensor *t, int64_t row, int64_t column)
{
    int64_t i = row_at(t, row) + column;
    if (t->dtype == DTYPE_F32)
        return ((float *)t->data)[i];
    return value_of(((uint16_t *)t->data)[i], t->dtype == DTYPE_BF16 ? 7 : 10);
}

static void copy_and_add_cast_between_all_floats(void **state)
{
    (void)state;
    static const double steps[] = {0x1p-24, 0x1p-8, 0x1p-11};
    for (int round = 0; round < 200; round++) {
        random_state = 300 + (uint64_t)round;
        int dims = (int)pick(1, 3);
        int64_t n = pick(0, 7), m = dims > 1 ? pick(1, 9) : -1, k = dims > 2 ? pick(1, 9) : -1;
        if (round % 10 == 0) /* longer than what is converted at a time */
            *(dims == 1 ? &n : dims == 2 ? &m : &k) = pick(500, 1600);
        enum dtype to = (enum dtype)pick(0, 2), from = (enum dtype)pick(0, 2);
        struct tensor src = as(random_tensor(n, m, k, -2, 2), from);
        struct tensor dst = as(random_tensor(n, m, k, -2, 2), to);
        float alpha = uniform(-2, 2);
        struct tensor sum = as(random_tensor(n, m, k, 1, 1), to);
        kernels->copy(queue, dst, src);
        kernels->add(queue, sum, src, alpha);
        for (int64_t i = 0; i < rows_of(&dst); i++)
            for (int64_t j = 0; j < columns_of(&dst); j++) {
                double x = element(&src, i, j);
                check_close("copy", element(&dst, i, j), x, steps[to], 1e-4);
                /* A half rounds once, to its own size; fp32 also rounds what cancels. */
                check_close("add", element(&sum, i, j), 1 + alpha * x, steps[to],
                            to == DTYPE_F32 ? 5 : 1e-3);
            }
        if (to == DTYPE_F32) {
            check_gaps(dst);
            check_gaps(sum);
        }
        free_all();
    }
}

static void integers_are_copied_as_they_are(void **state)
{
    (void)state;
    struct tensor from = random_i32(37, INT32_MIN / 2, INT32_MAX / 2), to = random_i32(37, 0, 0);
    kernels->copy(queue, to, from);
    assert_memory_equal(to.data, from.data, 37 * sizeof(int32_t));
    uint8_t bytes[] = {1, 2, 255}, other[3];
    kernels->copy(queue, tensor_1d(other, DTYPE_U8, DEVICE_CPU, 3),
                  tensor_1d(bytes, DTYPE_U8, DEVICE_CPU, 3));
    assert_memory_equal(other, bytes, 3);
    kernels->upload(queue, other, "xyz", 3);
    assert_memory_equal(other, "xyz", 3);
    kernels->download(queue, bytes, other, 3);
    assert_memory_equal(bytes, "xyz", 3);
    kernels->fill_zero(queue, bytes, 2);
    assert_memory_equal(bytes, "\0\0z", 3);
    kernels->fill_zero(queue, NULL, 0);
    kernels->upload(queue, NULL, NULL, 0);
    free_all();
}

static void rows_are_gathered_and_scattered_by_index(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        random_state = 700 + (uint64_t)round;
        int64_t n = pick(0, 40), all = pick(1, 30), m = pick(1, 12);
        int64_t k = chance(0.3) ? pick(1, 6) : -1, parts = k < 0 ? 1 : m;
        struct tensor rows = random_i32(n, -1, all - 1);
        const int32_t *index = rows.data;
        struct tensor src = random_tensor(all, m, k, -1, 1), dst = poisoned(n, m, k);
        kernels->gather_rows(queue, dst, src, rows);
        check_gaps(dst);
        for (int64_t i = 0; i < n * parts; i++)
            for (int64_t j = 0; j < columns_of(&dst); j++) {
                int64_t from = index[i / parts];
                float expected = from < 0 ? 0 : *at(&src, from * parts + i % parts, j);
                assert_true(*at(&dst, i, j) == expected);
            }
        struct tensor sum = random_tensor(all, m, k, -1, 1), more = random_tensor(n, m, k, -1, 1);
        double *expected = doubles(all * parts * columns_of(&sum));
        for (int64_t i = 0; i < all * parts; i++)
            for (int64_t j = 0; j < columns_of(&sum); j++)
                expected[i * columns_of(&sum) + j] = *at(&sum, i, j);
        for (int64_t i = 0; i < n * parts; i++)
            for (int64_t j = 0; index[i / parts] >= 0 && j < columns_of(&sum); j++)
                expected[(index[i / parts] * parts + i % parts) * columns_of(&sum) + j] +=
                    *at(&more, i, j);
        kernels->scatter_add_rows(queue, sum, more, rows);
        check_tensor("scatter_add_rows", sum, expected, 1e-6, 3);
        free_all();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alloc_aligns_and_reports_what_it_cannot_give),
        cmocka_unit_test(a_queue_keeps_its_first_failure_and_does_nothing_more),
        cmocka_unit_test(views_address_what_they_say),
        cmocka_unit_test(a_dtype_has_a_size_and_a_name),
        cmocka_unit_test(every_half_converts_to_its_value_and_back),
        cmocka_unit_test(casts_round_to_nearest_even),
        cmocka_unit_test(copy_and_add_cast_between_all_floats),
        cmocka_unit_test(integers_are_copied_as_they_are),
        cmocka_unit_test(rows_are_gathered_and_scattered_by_index),
    };
    return cmocka_run_group_tests(tests, open_queue, close_queue);
}
