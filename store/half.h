/* The two 16-bit floating-point formats, as bits. To them numbers are rounded to the nearest, ties
 * to even; what is too large becomes infinite, and a NaN stays one. */
#ifndef STORE_HALF_H
#define STORE_HALF_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* bfloat16: the upper half of an fp32. */
static inline float bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline uint16_t f32_to_bf16(float value)
{
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    if (isnan(value))
        return (uint16_t)(wide >> 16 | 0x40);
    return (uint16_t)((wide + 0x7fff + (wide >> 16 & 1)) >> 16);
}

/* IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits. */
static inline float f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 0x1f,
             fraction = bits & 0x3ff, wide;
    float value;
    if (exponent == 0x1f) {
        wide = sign | 0x7f800000 | fraction << 13; /* infinity, NaN */
    } else if (exponent > 0) {
        wide = sign | (exponent + 127 - 15) << 23 | fraction << 13;
    } else {
        value = (float)fraction * 0x1p-24f; /* zero and subnormal numbers */
        return sign ? -value : value;
    }
    memcpy(&value, &wide, sizeof value);
    return value;
}

static inline uint16_t f32_to_f16(float value)
{
    const uint32_t infinity = 0x7f800000, too_large = 0x477ff000 /* 65520 */,
                   normal = 0x38800000 /* 2^-14 */;
    uint32_t wide;
    memcpy(&wide, &value, sizeof wide);
    uint32_t sign = wide >> 16 & 0x8000, size = wide & 0x7fffffff;
    if (size > infinity)
        return (uint16_t)(sign | 0x7e00);
    if (size >= too_large)
        return (uint16_t)(sign | 0x7c00);
    if (size < normal)
        return (uint16_t)(sign | (uint32_t)rintf(fabsf(value) * 0x1p24f));
    return (uint16_t)(sign | (size - normal + (1 << 23) + 0xfff + (size >> 13 & 1)) >> 13);
}

#endif
