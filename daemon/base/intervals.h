/* Which keys a query sees and where they lie: plain data that the plan makes and the kernels read
 * (docs/mathematics.md, "Attention"). A key position names a key anywhere in a group of ranks. */
#ifndef BASE_INTERVALS_H
#define BASE_INTERVALS_H

#include <stdint.h>

/* Every query row sees at most one interval of key positions in each of so many pieces. */
#define ATTENTION_PIECES 2

/* Keys [position, position + length) lie at rows row .. of K and V. */
struct key_chunk {
    int64_t position;
    int64_t length;
    int64_t row;
};

/* [begin, end) in key positions; begin >= end is empty. */
struct key_interval {
    int64_t begin;
    int64_t end;
};

#endif
