/* A Feistel network is a permutation of the numbers of 2h bits whatever its round function is.
 * Ours is Philox under the job's seed, with the epoch in its counter. Numbers of n and more are
 * walked through it again until one below n comes out; 2^(2h) < 4n, so that is four turns on
 * average at most, and the result is a permutation of [0, n).
 */
#include "daemon/worker/data/order.h"

#include <assert.h>

#include "daemon/base/philox.h"

#define ROUNDS 8

static uint64_t feistel(uint64_t seed, uint64_t epoch, unsigned half, uint64_t x)
{
    uint64_t mask = ((uint64_t)1 << half) - 1, left = x >> half, right = x & mask;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t next = left ^ (philox_bits(seed, PHILOX_ORDER, epoch, round, right) & mask);
        left = right;
        right = next;
    }
    return left << half | right;
}

uint64_t order_sequence(uint64_t seed, uint64_t n, uint64_t sample)
{
    assert(n >= 1);
    uint64_t epoch = sample / n, x = sample % n;
    unsigned bits = 0;
    while (bits < 64 && (n - 1) >> bits)
        bits++;
    unsigned half = bits > 1 ? (bits + 1) / 2 : 1;
    do
        x = feistel(seed, epoch, half, x);
    while (x >= n);
    return x;
}
