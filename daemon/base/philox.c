#include "daemon/base/philox.h"

#include <math.h>

struct philox_block philox4x32(struct philox_block counter, uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    struct philox_block c = counter;
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c.word[0];
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c.word[2];
        struct philox_block n = {{
            (uint32_t)(p1 >> 32) ^ c.word[1] ^ k0,
            (uint32_t)p1,
            (uint32_t)(p0 >> 32) ^ c.word[3] ^ k1,
            (uint32_t)p0,
        }};
        c = n;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c;
}

/* Counter layout: index (40 bits) | purpose (8) | view (8) ; sample (48) in the remaining bits. */
static struct philox_block draw(uint64_t seed, enum philox_purpose purpose, uint64_t sample,
                                uint32_t view, uint64_t index)
{
    struct philox_block counter = {{
        (uint32_t)index,
        (uint32_t)(index >> 32 & 0xff) | (uint32_t)purpose << 8 | (view & 0xff) << 16,
        (uint32_t)sample,
        (uint32_t)(sample >> 32),
    }};
    return philox4x32(counter, seed);
}

float philox_uniform(uint64_t seed, enum philox_purpose purpose, uint64_t sample, uint32_t view,
                     uint64_t index)
{
    return (float)(draw(seed, purpose, sample, view, index).word[0] >> 8) * 0x1p-24f;
}

float philox_normal(uint64_t seed, enum philox_purpose purpose, uint64_t sample, uint32_t view,
                    uint64_t index)
{
    struct philox_block b = draw(seed, purpose, sample, view, index);
    double u = ((double)b.word[0] + 1.0) * 0x1p-32; /* (0, 1] */
    double v = (double)b.word[1] * 0x1p-32;
    return (float)(sqrt(-2.0 * log(u)) * cos(2.0 * 3.14159265358979323846 * v));
}

uint64_t philox_bits(uint64_t seed, enum philox_purpose purpose, uint64_t sample, uint32_t view,
                     uint64_t index)
{
    struct philox_block b = draw(seed, purpose, sample, view, index);
    return (uint64_t)b.word[1] << 32 | b.word[0];
}
