#include "kernels/cpu/tiles.h"

#include <assert.h>
#include <stdlib.h>

/* Cutting a tile must leave out this many pairs to pay for the smaller products. */
#define LEAST_SAVING 256

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t area(const struct tile *t)
{
    return (t->row_end - t->row_begin) * (t->key_end - t->key_begin);
}

/* Trims the tile to what is seen; one that nobody sees gets an area of 0. Returns the number of
 * visible pairs. */
static int64_t trim(struct tile *t, const struct key_interval *intervals)
{
    int64_t first = t->row_end, last = t->row_begin, begin = t->key_end, end = t->key_begin;
    int64_t pairs = 0;
    for (int64_t row = t->row_begin; row < t->row_end; row++) {
        int64_t from = max(intervals[row].begin, t->key_begin);
        int64_t to = min(intervals[row].end, t->key_end);
        if (from >= to)
            continue;
        first = min(first, row);
        last = row + 1;
        begin = min(begin, from);
        end = max(end, to);
        pairs += to - from;
    }
    if (pairs == 0)
        last = first, end = begin;
    t->key_row += begin - t->key_begin;
    *t = (struct tile){first, last, begin, end, t->key_row};
    return pairs;
}

static bool append(struct tile_list *list, struct tile t)
{
    if (list->count == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 64;
        struct tile *grown = realloc(list->tile, capacity * sizeof *grown);
        if (!grown)
            return false;
        list->tile = grown;
        list->capacity = capacity;
    }
    list->tile[list->count++] = t;
    return true;
}

/* The pairs in the trimmed tile of the first 1, 2, .. rows of `t` (step 1) or of the last ones
 * (step -1): areas[i] is for `i` rows. */
static void growing_areas(int64_t *areas, const struct tile *t,
                          const struct key_interval *intervals, int step)
{
    int64_t rows = t->row_end - t->row_begin, begin = t->key_end, end = t->key_begin;
    const struct key_interval *row = intervals + (step > 0 ? t->row_begin : t->row_end - 1);
    areas[0] = 0;
    for (int64_t i = 1; i <= rows; i++, row += step) {
        int64_t from = max(row->begin, t->key_begin), to = min(row->end, t->key_end);
        if (from < to) {
            begin = min(begin, from);
            end = max(end, to);
        }
        areas[i] = i * max(end - begin, 0);
    }
}

/* Appends the tile, cut between the two rows where that leaves out most. Each cut shrinks the
 * area, so the recursion ends; it is at most TILE_ROWS deep. */
static bool add(struct tile_list *list, struct tile t, const struct key_interval *intervals)
{
    int64_t pairs = trim(&t, intervals), rows = t.row_end - t.row_begin;
    if (pairs == 0)
        return true;
    if (area(&t) - pairs < LEAST_SAVING)
        return append(list, t);
    int64_t above[TILE_ROWS + 1], below[TILE_ROWS + 1], cut = 0;
    growing_areas(above, &t, intervals, 1);
    growing_areas(below, &t, intervals, -1);
    for (int64_t i = 1; i < rows; i++)
        if (above[i] + below[rows - i] < above[cut] + below[rows - cut])
            cut = i;
    if (area(&t) - above[cut] - below[rows - cut] < LEAST_SAVING)
        return append(list, t);
    struct tile upper = t, lower = t;
    upper.row_end = lower.row_begin = t.row_begin + cut;
    return add(list, upper, intervals) && add(list, lower, intervals);
}

/* The first position from `from` on that some row sees, or INT64_MAX. */
static int64_t next_seen(const struct key_interval *intervals, int64_t row_begin, int64_t row_end,
                         int64_t from)
{
    int64_t next = INT64_MAX;
    for (int64_t row = row_begin; row < row_end; row++) {
        int64_t begin = max(intervals[row].begin, from);
        if (begin < intervals[row].end)
            next = min(next, begin);
    }
    return next;
}

/* The end of the run of positions from `from` on, up to `limit`, each of which some row sees. */
static int64_t seen_until(const struct key_interval *intervals, int64_t row_begin, int64_t row_end,
                          int64_t from, int64_t limit)
{
    int64_t end = from, before;
    do {
        before = end;
        for (int64_t row = row_begin; row < row_end; row++)
            if (intervals[row].begin <= end)
                end = max(end, intervals[row].end);
    } while (end > before && end < limit);
    return min(end, limit);
}

/* The chunk that holds a position. */
static int find_chunk(const struct attention_piece *piece, int64_t position)
{
    int low = 0, high = piece->n_chunks;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (piece->chunks[middle].position <= position)
            low = middle;
        else
            high = middle;
    }
    assert(low < piece->n_chunks && position >= piece->chunks[low].position &&
           position < piece->chunks[low].position + piece->chunks[low].length);
    return low;
}

bool tile_list_build(struct tile_list *list, const struct attention_piece *piece, int64_t row_begin,
                     int64_t row_end)
{
    assert(row_end - row_begin <= TILE_ROWS);
    list->count = 0;
    int64_t from = next_seen(piece->intervals, row_begin, row_end, INT64_MIN);
    while (from < INT64_MAX) {
        int c = find_chunk(piece, from);
        const struct key_chunk *chunk = &piece->chunks[c];
        int64_t key_row = chunk->row + (from - chunk->position);
        /* Chunks that continue each other in position and in row are as good as one. */
        int64_t end = chunk->position + chunk->length;
        while (end < from + TILE_KEYS && c + 1 < piece->n_chunks && chunk[1].position == end &&
               chunk[1].row == chunk->row + chunk->length) {
            chunk++, c++;
            end += chunk->length;
        }
        end = seen_until(piece->intervals, row_begin, row_end, from, min(end, from + TILE_KEYS));
        struct tile t = {row_begin, row_end, from, end, key_row};
        if (!add(list, t, piece->intervals))
            return false;
        from = next_seen(piece->intervals, row_begin, row_end, end);
    }
    return true;
}

void tile_list_free(struct tile_list *list)
{
    free(list->tile);
    *list = (struct tile_list){0};
}
