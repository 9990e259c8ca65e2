/* bf16 and fp16: every value there and back, and the rounding between neighbours. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "store/half.h"

struct format {
    const char *name;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
    uint16_t infinity;
};

static const struct format formats[] = {
    {"bf16", bf16_to_f32, f32_to_bf16, 0x7f80},
    {"fp16", f16_to_f32, f32_to_f16, 0x7c00},
};

static void every_value_comes_back(void **state)
{
    (void)state;
    for (size_t f = 0; f < 2; f++)
        for (uint32_t bits = 0; bits <= 0xffff; bits++) {
            float value = formats[f].widen((uint16_t)bits);
            uint16_t back = formats[f].narrow(value);
            if (isnan(value) ? !isnan(formats[f].widen(back)) : back != bits)
                fail_msg("%s %04x became %04x", formats[f].name, bits, back);
        }
}

static void expect(const struct format *f, float value, uint32_t bits)
{
    for (int sign = 0; sign < 2; sign++) {
        uint16_t got = f->narrow(sign ? -value : value);
        if (got != (bits | (sign ? 0x8000u : 0)))
            fail_msg("%s: %.9g became %04x, not %04x", f->name, (double)(sign ? -value : value),
                     got, bits);
    }
}

static void the_nearest_wins_and_ties_go_to_even(void **state)
{
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        const struct format *f = &formats[i];
        for (uint16_t bits = 0; bits < f->infinity - 1; bits++) {
            float low = f->widen(bits), high = f->widen((uint16_t)(bits + 1));
            double middle = ((double)low + high) / 2;
            if ((double)(float)middle != middle)
                continue; /* fp32 has nothing between neighbours as small as these */
            expect(f, (float)middle, bits + (bits & 1));
            expect(f, nextafterf((float)middle, low), bits);
            expect(f, nextafterf((float)middle, high), bits + 1u);
        }
    }
}

static void what_is_too_large_is_infinite(void **state)
{
    (void)state;
    expect(&formats[1], 65504.0f, 0x7bff);
    expect(&formats[1], 65519.996f, 0x7bff);
    expect(&formats[1], 65520.0f, 0x7c00);
    expect(&formats[1], INFINITY, 0x7c00);
    expect(&formats[0], 3.4e38f, 0x7f80);
    expect(&formats[0], INFINITY, 0x7f80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_comes_back),
        cmocka_unit_test(the_nearest_wins_and_ties_go_to_even),
        cmocka_unit_test(what_is_too_large_is_infinite),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
