/* What interval attention computes, as its kernels walk it: for every query tile of ATTENTION_ROWS
 * rows the runs of key positions that some row of it sees.
 *
 * A run is taken in tiles of as many keys as a kernel likes, from its begin on; a tile of it that
 * lies within [full_begin, full_end) is seen entirely by all rows of the query tile and needs no
 * mask, and for the others each row has its bounds. So a list is as long as there are runs (one or
 * two a query tile for block diffusion), however long the sequence is, and independent of heads.
 */
#ifndef KERNELS_CUDA_ATTENTION_TILES_H
#define KERNELS_CUDA_ATTENTION_TILES_H

#include "kernels/kernels.h"

#define ATTENTION_ROWS 128

struct attention_run {
    int32_t begin, end;           /* key positions */
    int32_t full_begin, full_end; /* begin >= end: there are none */
    int32_t row;                  /* of K and V that holds `begin`; the others follow */
    int32_t piece;
};

struct attention_tile {
    int32_t row; /* the first query row */
    int32_t first_run, runs;
    int32_t keys; /* in all runs: the work */
};

/* What a row sees in a piece: [begin, end), 0, 0 where it sees nothing. */
struct attention_bounds {
    int32_t begin, end;
};

struct attention_tiles {
    struct attention_tile *tile; /* [tiles], the most work first */
    struct attention_run *run;   /* [runs] */
    size_t tiles, runs, run_capacity, tile_capacity;
};

/* Overwrites the list, whose memory is kept from call to call. False: out of memory. */
bool attention_tiles_build(struct attention_tiles *list, const struct attention *a);
void attention_tiles_free(struct attention_tiles *list);
/* bounds [n_pieces, n] */
void attention_bounds_fill(struct attention_bounds *bounds, const struct attention *a);

#endif
