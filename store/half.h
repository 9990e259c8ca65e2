/* The two 16-bit floating-point formats, as bits. */
#ifndef STORE_HALF_H
#define STORE_HALF_H

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

#endif
