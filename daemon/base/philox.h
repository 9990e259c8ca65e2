/* Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy
 * as 1, 2, 3" (SC'11). Every random number of a job is a pure function of the job's seed and of
 * what it is for, never of call order, rank or thread: see docs/mathematics.md, "Determinism".
 */
#ifndef BASE_PHILOX_H
#define BASE_PHILOX_H

#include <stdint.h>

/* What a draw is for. The numbers are part of the promise that a seed reproduces a run. */
enum philox_purpose {
    PHILOX_TIME = 1,      /* corruption time; index: block, or 0 when antithetic */
    PHILOX_MASK = 2,      /* is the token at `index` masked */
    PHILOX_ORDER = 3,     /* round keys of the sample permutation */
    PHILOX_INIT = 4,      /* random weights; sample: parameter number, index: element */
    PHILOX_EVAL_TIME = 5, /* as PHILOX_TIME, for the evaluation's fixed corruption */
    PHILOX_EVAL_MASK = 6, /* as PHILOX_MASK, likewise */
    PHILOX_SPLIT = 7,     /* held-out split; index: document */
};

struct philox_block {
    uint32_t word[4];
};

/* The raw function: ten rounds over a 128-bit counter and a 64-bit key. */
struct philox_block philox4x32(struct philox_block counter, uint64_t key);

/* Uniform in [0, 1), 24 bits, for (seed, purpose, sample, view, index).
 * sample < 2^48 counts over epochs; view < 2^8; index < 2^40. */
float philox_uniform(uint64_t seed, enum philox_purpose purpose, uint64_t sample, uint32_t view,
                     uint64_t index);
/* Standard normal (Box-Muller on two words of one block). */
float philox_normal(uint64_t seed, enum philox_purpose purpose, uint64_t sample, uint32_t view,
                    uint64_t index);
/* 64 random bits. */
uint64_t philox_bits(uint64_t seed, enum philox_purpose purpose, uint64_t sample, uint32_t view,
                     uint64_t index);

#endif
