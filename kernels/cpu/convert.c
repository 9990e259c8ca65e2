/* BF16 and F16 to and from fp32.
 *
 * BF16 is the upper half of an fp32. F16 has 5 bits of exponent and 10 of mantissa; its subnormal
 * numbers are multiples of 2^-24. Rounding is to nearest, ties to even; what is too large becomes
 * infinite, and a NaN stays one (quiet).
 */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float from_bf16(uint16_t h)
{
    return float_of((uint32_t)h << 16);
}

static uint16_t to_bf16(float x)
{
    uint32_t bits = bits_of(x);
    uint32_t quiet = (bits >> 16) | 0x40;
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded);
}

static float from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude < 0x0400) { /* zero or subnormal */
        float x = (float)magnitude * 0x1p-24f;
        return sign ? -x : x;
    }
    if (magnitude >= 0x7c00) /* infinite or NaN */
        return float_of(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    return float_of(sign | ((magnitude << 13) + ((127u - 15u) << 23)));
}

static uint16_t to_f16(float x)
{
    uint32_t bits = bits_of(x);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return sign | 0x7e00 | (uint16_t)(magnitude >> 13 & 0x3ff);
    if (magnitude >= 0x477ff000) /* 65520 and up: halfway from the largest number to 2^16 */
        return sign | 0x7c00;
    if (magnitude < 0x38800000) /* below 2^-14: a multiple of 2^-24, rounded by the addition */
        return sign | (uint16_t)(bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f));
    magnitude += 0xfff + (magnitude >> 13 & 1);
    return sign | (uint16_t)((magnitude - ((127u - 15u) << 23)) >> 13);
}

void cpu_load(float *to, const void *from, enum dtype dtype, int64_t n)
{
    const uint16_t *half = from;
    if (dtype == DTYPE_F32)
        memcpy(to, from, (size_t)n * sizeof *to);
    else if (dtype == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            to[i] = from_bf16(half[i]);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = from_f16(half[i]);
}

void cpu_store(void *to, const float *from, enum dtype dtype, int64_t n)
{
    uint16_t *half = to;
    if (dtype == DTYPE_F32)
        memcpy(to, from, (size_t)n * sizeof *from);
    else if (dtype == DTYPE_BF16)
        for (int64_t i = 0; i < n; i++)
            half[i] = to_bf16(from[i]);
    else
        for (int64_t i = 0; i < n; i++)
            half[i] = to_f16(from[i]);
}
