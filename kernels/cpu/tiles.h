/* Which rectangles of (query row, key position) interval attention has to compute.
 *
 * The rows of a query tile may see very different keys: the rows that a rank owns are runs of
 * blocks, views and chunks from all over a sequence. So the visible keys are walked from the left:
 * a tile of keys begins at the next position that some row sees and ends at the latest where the
 * next one is seen by none. So what nobody sees costs nothing, however long it is, and is never
 * read. A tile is trimmed to the rows that see something of it. Where they still see little of the
 * rectangle (diagonals, ends of documents, blocks of their own) it is cut into halves of rows,
 * each trimmed again, as long as that saves enough to pay for smaller products. What all rows see
 * entirely needs no mask.
 *
 * The rectangles depend on intervals and chunks alone: all heads share them.
 */
#ifndef KERNELS_CPU_TILES_H
#define KERNELS_CPU_TILES_H

#include "kernels/kernels.h"

/* The most rows of a query tile and keys of a key tile: products of 64 x 128 x d run near the
 * peak of OpenBLAS, and scores and operands of a head stay in the second-level cache. */
#define TILE_ROWS 64
#define TILE_KEYS 128

struct tile {
    int64_t row_begin, row_end; /* query rows */
    int64_t key_begin, key_end; /* key positions, at most TILE_KEYS */
    int64_t key_row;            /* row of K and V that holds key_begin; the others follow */
};

/* The part of a tile's keys that a row sees, counted from key_begin; begin >= end is none. */
static inline struct key_interval tile_visible(const struct tile *t, struct key_interval seen)
{
    int64_t begin = seen.begin > t->key_begin ? seen.begin : t->key_begin;
    int64_t end = seen.end < t->key_end ? seen.end : t->key_end;
    return (struct key_interval){begin - t->key_begin, end - t->key_begin};
}

/* Grows as needed and is reused from tile to tile; tile_list_free frees it. */
struct tile_list {
    struct tile *tile;
    size_t count, capacity;
};

/* Overwrites the list with the tiles of query rows [row_begin, row_end), sorted by position.
 * False: out of memory. */
bool tile_list_build(struct tile_list *list, const struct attention_piece *piece, int64_t row_begin,
                     int64_t row_end);
void tile_list_free(struct tile_list *list);

#endif
