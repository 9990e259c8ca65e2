#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/philox.h"

static void check(struct philox_block counter, uint64_t key, struct philox_block expected)
{
    struct philox_block got = philox4x32(counter, key);
    for (int i = 0; i < 4; i++)
        assert_int_equal(got.word[i], expected.word[i]);
}

/* Known answers of the authors' Random123 distribution (philox4x32-10). */
static void test_known_answers(void **state)
{
    (void)state;
    check((struct philox_block){{0, 0, 0, 0}}, 0,
          (struct philox_block){{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
    check((struct philox_block){{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
          0xffffffffffffffff,
          (struct philox_block){{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
    check((struct philox_block){{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
          0x299f31d0a4093822,
          (struct philox_block){{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

static void test_moments(void **state)
{
    (void)state;
    double mean = 0, square = 0, normal_mean = 0, normal_square = 0;
    int n = 100000;
    for (int i = 0; i < n; i++) {
        double u = philox_uniform(5, PHILOX_MASK, 1, 0, (uint64_t)i);
        double g = philox_normal(5, PHILOX_INIT, 1, 0, (uint64_t)i);
        assert_true(u >= 0 && u < 1 && isfinite(g));
        mean += u / n;
        square += u * u / n;
        normal_mean += g / n;
        normal_square += g * g / n;
    }
    assert_true(fabs(mean - 0.5) < 0.005 && fabs(square - 1.0 / 3) < 0.005);
    assert_true(fabs(normal_mean) < 0.02 && fabs(normal_square - 1) < 0.03);
}

/* Each coordinate of a draw matters, high bits too. */
static void test_coordinates_are_apart(void **state)
{
    (void)state;
    uint64_t base = philox_bits(1, PHILOX_MASK, 2, 3, 4);
    assert_true(base == philox_bits(1, PHILOX_MASK, 2, 3, 4));
    assert_true(base != philox_bits(2, PHILOX_MASK, 2, 3, 4));
    assert_true(base != philox_bits(1, PHILOX_TIME, 2, 3, 4));
    assert_true(base != philox_bits(1, PHILOX_MASK, 3, 3, 4));
    assert_true(base != philox_bits(1, PHILOX_MASK, 2 + (1ull << 40), 3, 4));
    assert_true(base != philox_bits(1, PHILOX_MASK, 2, 4, 4));
    assert_true(base != philox_bits(1, PHILOX_MASK, 2, 3, 5));
    assert_true(base != philox_bits(1, PHILOX_MASK, 2, 3, 4 + (1ull << 36)));
    assert_true(base != philox_bits(1ull << 40 | 1, PHILOX_MASK, 2, 3, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_answers),
        cmocka_unit_test(test_moments),
        cmocka_unit_test(test_coordinates_are_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
