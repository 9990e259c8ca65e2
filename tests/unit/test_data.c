/* Tokenizer and order: small pure things of daemon/worker/data. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/data/order.h"
#include "daemon/worker/data/tokenizer.h"

static void bytes_there_and_back(void **state)
{
    (void)state;
    const struct tokenizer *t;
    assert_null(tokenizer_find("bytes", &t));
    assert_true(t->vocab >= 259 && t->pad < t->vocab && t->mask < t->vocab);
    assert_true(t->end_of_document >= 256 && t->mask != t->pad && t->mask != t->end_of_document);

    static const char text[] = "a\xc3\xa9\0\xff\n";
    struct tokens tokens = {0};
    assert_null(t->encode(t, text, sizeof text - 1, &tokens));
    assert_null(t->encode(t, "b", 1, &tokens));
    assert_int_equal(tokens.count, sizeof text);
    assert_int_equal(tokens.ids[1], 0xc3);
    assert_int_equal(tokens.ids[4], 0xff);
    assert_null(tokens_reserve(&tokens, 1));
    tokens.ids[tokens.count++] = t->end_of_document;
    char *back;
    size_t n;
    assert_null(t->decode(t, tokens.ids, tokens.count, &back, &n));
    assert_int_equal(n, sizeof text);
    assert_memory_equal(back, "a\xc3\xa9\0\xff\nb", n + 1);
    free(back);

    tokens.ids[2] = t->vocab;
    struct err *e = t->decode(t, tokens.ids, tokens.count, &back, &n);
    assert_non_null(e);
    assert_int_equal(err_kind(e), ERR_INVALID);
    assert_non_null(strstr(err_message(e), "at place 2"));
    err_free(e);
    tokens_free(&tokens);

    e = tokenizer_find("bpe", &t);
    assert_non_null(e);
    assert_non_null(strstr(err_message(e), "bytes"));
    err_free(e);
}

/* Each epoch visits every sequence once. */
static void order_is_a_permutation(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 7, 16, 17, 100, 256, 257, 1000, 4097};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint64_t n = sizes[s];
        uint8_t *seen = calloc(n, 1);
        assert_non_null(seen);
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            memset(seen, 0, n);
            for (uint64_t i = 0; i < n; i++) {
                uint64_t at = order_sequence(7 + s, n, epoch * n + i);
                assert_true(at < n);
                assert_false(seen[at]);
                seen[at] = 1;
            }
        }
        free(seen);
    }
    /* Far away, without what lies before. */
    assert_true(order_sequence(1, 1000003, (uint64_t)1 << 47) < 1000003);
}

static void order_depends_on_seed_and_epoch(void **state)
{
    (void)state;
    const uint64_t n = 1000;
    int same_epoch = 0, same_seed = 0, unmoved = 0;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t at = order_sequence(1, n, i);
        same_epoch += at == order_sequence(1, n, n + i);
        same_seed += at == order_sequence(2, n, i);
        unmoved += at == i;
    }
    /* About one of a thousand each. */
    assert_true(same_epoch < 12 && same_seed < 12 && unmoved < 12);
}

/* Each place gets each sequence equally often, over many seeds; chi-squared with 35 - 10 = 25
 * degrees of freedom exceeds 60 once in 10^4. */
static void order_is_fair(void **state)
{
    (void)state;
    enum { N = 6, SEEDS = 6000 };
    int counts[N][N] = {{0}};
    for (uint64_t seed = 0; seed < SEEDS; seed++)
        for (uint64_t i = 0; i < N; i++)
            counts[i][order_sequence(seed, N, i)]++;
    double chi = 0, expected = SEEDS / N;
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++)
            chi += (counts[i][j] - expected) * (counts[i][j] - expected) / expected;
    assert_true(chi < 60);
}

/* The numbers are a promise: a seed reproduces a run. */
static void order_is_what_it_was(void **state)
{
    (void)state;
    static const uint64_t expected[8] = {4, 2, 3, 0, 1, 0, 4, 3};
    for (uint64_t i = 0; i < 8; i++)
        assert_int_equal(order_sequence(1, 5, i), expected[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_there_and_back),
        cmocka_unit_test(order_is_a_permutation),
        cmocka_unit_test(order_depends_on_seed_and_epoch),
        cmocka_unit_test(order_is_fair),
        cmocka_unit_test(order_is_what_it_was),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
