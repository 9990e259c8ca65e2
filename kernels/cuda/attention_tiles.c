#include "kernels/cuda/attention_tiles.h"

#include <assert.h>
#include <stdlib.h>

static int64_t min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The rows of a query tile and what they see of a piece. */
struct seen {
    const struct key_interval *row, *row_end;
    int64_t all_begin, all_end; /* seen by every row */
};

static struct seen look(const struct key_interval *row, int64_t rows)
{
    struct seen s = {row, row + rows, INT64_MIN, INT64_MAX};
    for (; row < s.row_end; row++) {
        s.all_begin = max(s.all_begin, row->begin);
        s.all_end = min(s.all_end, row->end);
    }
    return s;
}

/* The first position from `from` on that some row sees, or INT64_MAX. */
static int64_t next_seen(const struct seen *s, int64_t from)
{
    int64_t next = INT64_MAX;
    for (const struct key_interval *row = s->row; row < s->row_end; row++) {
        int64_t begin = max(row->begin, from);
        if (begin < row->end)
            next = min(next, begin);
    }
    return next;
}

/* The end of the positions from `from` on, up to `limit`, each of which some row sees. */
static int64_t seen_until(const struct seen *s, int64_t from, int64_t limit)
{
    int64_t end = from, before;
    do {
        before = end;
        for (const struct key_interval *row = s->row; row < s->row_end; row++)
            if (row->begin <= end && row->begin < row->end)
                end = max(end, row->end);
    } while (end > before && end < limit);
    return min(end, limit);
}

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

static bool append(struct attention_tiles *list, struct attention_run run)
{
    if (list->runs == list->run_capacity) {
        size_t capacity = list->run_capacity ? 2 * list->run_capacity : 256;
        struct attention_run *grown = realloc(list->run, capacity * sizeof *grown);
        if (!grown)
            return false;
        list->run = grown;
        list->run_capacity = capacity;
    }
    list->run[list->runs++] = run;
    return true;
}

static bool add_runs(struct attention_tiles *list, const struct attention_piece *piece, int which,
                     int64_t row, int64_t rows)
{
    struct seen s = look(piece->intervals + row, rows);
    for (int64_t from = next_seen(&s, 0); from < INT64_MAX;) {
        int c = find_chunk(piece, from);
        const struct key_chunk *chunk = &piece->chunks[c];
        int64_t key_row = chunk->row + (from - chunk->position);
        int64_t end = chunk->position + chunk->length;
        /* Chunks that continue each other in position and in row are as good as one. */
        for (; c + 1 < piece->n_chunks && chunk[1].position == end &&
               chunk[1].row == chunk->row + chunk->length;
             c++)
            end += (++chunk)->length;
        end = seen_until(&s, from, end);
        assert(end <= INT32_MAX && key_row + (end - from) <= INT32_MAX);
        int64_t full_begin = max(from, s.all_begin), full_end = min(end, s.all_end);
        if (full_begin >= full_end)
            full_begin = full_end = from;
        if (!append(list, (struct attention_run){(int32_t)from, (int32_t)end, (int32_t)full_begin,
                                                 (int32_t)full_end, (int32_t)key_row, which}))
            return false;
        from = next_seen(&s, end);
    }
    return true;
}

static int more_work(const void *a, const void *b)
{
    const struct attention_tile *x = a, *y = b;
    if (x->keys != y->keys)
        return x->keys > y->keys ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

bool attention_tiles_build(struct attention_tiles *list, const struct attention *a)
{
    int64_t n = a->q.shape[0];
    assert(n <= INT32_MAX - ATTENTION_ROWS);
    size_t tiles = (size_t)(n + ATTENTION_ROWS - 1) / ATTENTION_ROWS;
    if (tiles > list->tile_capacity) {
        struct attention_tile *grown = realloc(list->tile, tiles * sizeof *grown);
        if (!grown)
            return false;
        list->tile = grown;
        list->tile_capacity = tiles;
    }
    list->tiles = tiles;
    list->runs = 0;
    for (size_t t = 0; t < tiles; t++) {
        int64_t row = (int64_t)t * ATTENTION_ROWS, rows = min(ATTENTION_ROWS, n - row);
        size_t first = list->runs;
        for (int i = 0; i < a->n_pieces; i++)
            if (!add_runs(list, &a->pieces[i], i, row, rows))
                return false;
        int64_t keys = 0;
        for (size_t r = first; r < list->runs; r++)
            keys += list->run[r].end - list->run[r].begin;
        list->tile[t] =
            (struct attention_tile){(int32_t)row, (int32_t)first, (int32_t)(list->runs - first),
                                    (int32_t)min(keys, INT32_MAX)};
    }
    if (tiles)
        qsort(list->tile, tiles, sizeof *list->tile, more_work);
    return true;
}

void attention_tiles_free(struct attention_tiles *list)
{
    free(list->tile);
    free(list->run);
    *list = (struct attention_tiles){0};
}

void attention_bounds_fill(struct attention_bounds *bounds, const struct attention *a)
{
    for (int i = 0; i < a->n_pieces; i++)
        for (int64_t row = 0; row < a->q.shape[0]; row++, bounds++) {
            struct key_interval seen = a->pieces[i].intervals[row];
            *bounds = seen.begin < seen.end
                          ? (struct attention_bounds){(int32_t)seen.begin, (int32_t)seen.end}
                          : (struct attention_bounds){0, 0};
        }
}
