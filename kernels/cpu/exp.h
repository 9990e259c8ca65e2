/* expf that the compiler can vectorize.
 *
 * e^x = 2^n e^r with n the integer nearest to x / ln 2, so |r| <= ln 2 / 2 = 0.3466. e^r is its
 * Taylor polynomial of degree 7, whose error there is below 0.3466^8 / 8! = 5.2e-9, less than a
 * tenth of an fp32 rounding. ln 2 is subtracted in two parts, the first short enough for n times
 * it to be exact.
 */
#ifndef KERNELS_CPU_EXP_H
#define KERNELS_CPU_EXP_H

#include <stdint.h>
#include <string.h>

/* Relative error below 1.5e-7. Below -87.3 (results under 2^-126) exactly 0; above 88 the result
 * stays that of 88, 1.65e38; a NaN stays a NaN. */
static inline float exp_f32(float x)
{
    const float least = -87.33654f, most = 88.0f;
    const float ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    const float to_integer = 0x1.8p23f; /* adding it rounds to an integer in the low bits */
    float y = x < least ? least : x;
    y = y > most ? most : y;
    float shifted = y * 0x1.715476p+0f + to_integer;
    float n = shifted - to_integer;
    float r = y - n * ln2_high - n * ln2_low;
    float p = 1.0f / 5040;
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 1.0f / 2;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    uint32_t bits;
    float power;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23;
    memcpy(&power, &bits, sizeof power);
    return x < least ? 0.0f : p * power;
}

#endif
