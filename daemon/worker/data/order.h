/* Which sequence is read when: a permutation of the training split for each epoch, computed at any
 * place without those before it. So the data position of a run is one integer.
 */
#ifndef WORKER_ORDER_H
#define WORKER_ORDER_H

#include <stdint.h>

/* The sequence, in [0, n), that sample number `sample` reads; samples are counted over epochs, so
 * epoch e is samples [e n, (e + 1) n) and visits every sequence once. n >= 1. */
uint64_t order_sequence(uint64_t seed, uint64_t n, uint64_t sample);

#endif
