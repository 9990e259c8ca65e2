/* Ownership: which rows a rank holds, and in which order they lie there.
 *
 * Row i of a corrupted stream costs about its prefix, so work is dealt from both ends at once.
 * Blocks (CSBP, BP): with q = floor(B / 2R), rank r takes the pairs (i, B - 1 - i) for i in
 * [r q, (r + 1) q), which cost the same for every i. Fewer than 2R blocks are left in the middle;
 * dealt from the dearest down, each to the rank with fewest blocks, ties to the lightest and then
 * the lowest, the first R of them go to ranks 0, 1, .., R - 1 (all are equal when they start, and
 * each step leaves the next rank behind) and the others to R - 1, R - 2, .. (now the rank that got
 * the cheapest is lightest). So the whole deal has a closed form, and a rank's blocks are at most
 * four stretches. Rows (CP, the clean stream of CSBP): 2R chunks, rank r owns chunks r and
 * 2R - 1 - r.
 *
 * Nothing here depends on documents or windows, so memory can be sized before any data is seen.
 */
#include "daemon/plan/layout.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A stretch each from the low end, the high end, and the two halves of the middle. */
#define MAX_BLOCK_SPANS 4

#define MAX_VIEWS 255
/* No machine holds a micro-batch of more rows. */
#define MAX_LENGTH ((int64_t)1 << 26)

/* ---- Checks ---- */

static struct err *check_shape(const struct plan_shape *s, int rank)
{
    if (s->mode < MODE_NONE || s->mode > MODE_CSBP)
        return err_new(ERR_INVALID, "parallel.mode %d is none of csbp, cp, bp and none",
                       (int)s->mode);
    if (s->degree < 1 || s->degree > SPEC_MAX_DEGREE)
        return err_new(ERR_INVALID, "parallel.degree %d is not between 1 and %d", s->degree,
                       SPEC_MAX_DEGREE);
    if (s->mode == MODE_NONE && s->degree != 1)
        return err_new(ERR_INVALID, "parallel.degree %d must be 1 where parallel.mode is none",
                       s->degree);
    if (rank < 0 || rank >= s->degree)
        return err_new(ERR_INVALID, "rank %d is not between 0 and parallel.degree - 1 = %d", rank,
                       s->degree - 1);
    if (s->causal && s->views != 0)
        return err_new(ERR_INVALID, "objective.views %d must be 0 for an autoregressive objective",
                       s->views);
    if (!s->causal && (s->views < 1 || s->views > MAX_VIEWS))
        return err_new(ERR_INVALID, "objective.views %d is not between 1 and %d", s->views,
                       MAX_VIEWS);
    if (s->length < 1 || s->length > MAX_LENGTH)
        return err_new(ERR_INVALID,
                       "data.sequence_length %" PRId64 " (times batch.micro_sequences) is not "
                       "between 1 and %" PRId64,
                       s->length, MAX_LENGTH);
    if (s->block_size < 1)
        return err_new(ERR_INVALID, "objective.block_size %" PRId64 " is not positive",
                       s->block_size);
    if (!s->causal && s->length % s->block_size != 0)
        return err_new(ERR_INVALID,
                       "data.sequence_length %" PRId64
                       " is not a multiple of objective.block_size %" PRId64,
                       s->length, s->block_size);
    if (s->mode != MODE_NONE && s->length < 2 * (int64_t)s->degree)
        return err_new(ERR_INVALID,
                       "data.sequence_length %" PRId64
                       " is less than 2 x parallel.degree %d: a rank needs two chunks of it",
                       s->length, s->degree);
    return NULL;
}

struct err *plan_check(const struct plan_shape *shape, int rank,
                       const struct plan_document *documents, size_t n_documents,
                       const int64_t *windows, int n_kinds)
{
    TRY(check_shape(shape, rank));
    int64_t end = 0;
    for (size_t i = 0; i < n_documents; i++) {
        const struct plan_document *d = &documents[i];
        if (d->begin < end || d->end < d->begin || d->end > shape->length)
            return err_new(ERR_INVALID,
                           "document %zu covers rows [%" PRId64 ", %" PRId64
                           "), which must lie in order within [%" PRId64 ", %" PRId64 ")",
                           i, d->begin, d->end, end, shape->length);
        end = d->end;
    }
    if (n_kinds < 1)
        return err_new(ERR_INVALID, "%d distinct windows: a model has at least one", n_kinds);
    for (int i = 0; i < n_kinds; i++)
        if (windows[i] < 0)
            return err_new(ERR_INVALID, "sliding window %" PRId64 " is negative", windows[i]);
    return NULL;
}

/* ---- The deal ---- */

void plan_block_owners(int64_t blocks, int degree, int32_t *owner)
{
    int64_t q = blocks / (2 * (int64_t)degree);
    int64_t low = q * degree, high = blocks - low;
    for (int64_t i = 0; i < low; i++)
        owner[i] = owner[blocks - 1 - i] = (int32_t)(i / q);
    for (int64_t i = low; i < high; i++) {
        int64_t nth = high - 1 - i; /* dearest first */
        owner[i] = (int32_t)(nth < degree ? nth : 2 * (int64_t)degree - 1 - nth);
    }
}

int64_t plan_chunk_begin(int64_t n, int degree, int chunk)
{
    return n * chunk / (2 * (int64_t)degree);
}

/* The blocks of one rank as plan_block_owners deals them; ascending, some possibly adjacent. */
static int block_spans(int64_t blocks, int degree, int rank,
                       struct plan_span out[static MAX_BLOCK_SPANS])
{
    int64_t q = blocks / (2 * (int64_t)degree);
    int64_t low = q * degree, high = blocks - low;
    int64_t first = high - 1 - rank, second = high - 2 * (int64_t)degree + rank;
    int n = 0;
    if (q > 0)
        out[n++] = (struct plan_span){rank * q, (rank + 1) * q};
    if (second >= low)
        out[n++] = (struct plan_span){second, second + 1};
    if (first >= low)
        out[n++] = (struct plan_span){first, first + 1};
    if (q > 0)
        out[n++] = (struct plan_span){blocks - (rank + 1) * q, blocks - rank * q};
    return n;
}

/* ---- Runs ---- */

/* Appends rows to a rank's local order; joins them with the run before where nothing lies between.
 * *n_runs counts the rank's runs so far. */
static void push_run(struct plan_run *runs, int *n_runs, int stream, int64_t begin, int64_t end,
                     bool carries_loss, bool exchanged)
{
    if (begin >= end)
        return;
    int64_t row = 0;
    if (*n_runs > 0) {
        struct plan_run *last = &runs[*n_runs - 1];
        row = last->row + last->length;
        if (last->stream == stream && last->position + last->length == begin &&
            last->carries_loss == carries_loss && last->exchanged == exchanged) {
            last->length += end - begin;
            return;
        }
    }
    runs[(*n_runs)++] = (struct plan_run){.stream = stream,
                                          .position = begin,
                                          .length = end - begin,
                                          .row = row,
                                          .carries_loss = carries_loss,
                                          .exchanged = exchanged};
}

/* Rows [begin, end) of the one stream that CP cuts: view 0, view 1, .., clean. */
static void push_cp_chunk(const struct plan_shape *s, struct plan_run *runs, int *n_runs,
                          int64_t begin, int64_t end)
{
    while (begin < end) {
        int64_t part = begin / s->length;
        int64_t stop = (part + 1) * s->length < end ? (part + 1) * s->length : end;
        int stream = part < s->views ? 1 + (int)part : 0;
        int64_t origin = part * s->length;
        push_run(runs, n_runs, stream, begin - origin, stop - origin, stream > 0 || s->causal,
                 s->degree > 1);
        begin = stop;
    }
}

/* The runs of one rank, into room for max_runs() of them. Returns their count. */
static int rank_runs(const struct plan_shape *s, int rank, struct plan_run *runs)
{
    int n = 0;
    int64_t L = s->length;
    int near = rank, far = 2 * s->degree - 1 - rank; /* its pair of chunks */

    if (s->mode == MODE_NONE) {
        for (int v = 0; v < s->views; v++)
            push_run(runs, &n, 1 + v, 0, L, true, false);
        push_run(runs, &n, 0, 0, L, s->causal, false);
        return n;
    }
    if (s->mode == MODE_CP) {
        int64_t rows = (1 + s->views) * L;
        push_cp_chunk(s, runs, &n, plan_chunk_begin(rows, s->degree, near),
                      plan_chunk_begin(rows, s->degree, near + 1));
        push_cp_chunk(s, runs, &n, plan_chunk_begin(rows, s->degree, far),
                      plan_chunk_begin(rows, s->degree, far + 1));
        return n;
    }

    struct plan_span spans[MAX_BLOCK_SPANS];
    int n_spans = s->causal ? 0 : block_spans(L / s->block_size, s->degree, rank, spans);
    for (int v = 0; v < s->views; v++)
        for (int i = 0; i < n_spans; i++)
            push_run(runs, &n, 1 + v, spans[i].begin * s->block_size, spans[i].end * s->block_size,
                     true, false);

    int64_t chunk[2][2] = {
        {plan_chunk_begin(L, s->degree, near), plan_chunk_begin(L, s->degree, near + 1)},
        {plan_chunk_begin(L, s->degree, far), plan_chunk_begin(L, s->degree, far + 1)},
    };
    if (s->mode == MODE_CSBP) {
        for (int i = 0; i < 2; i++)
            push_run(runs, &n, 0, chunk[i][0], chunk[i][1], s->causal, s->degree > 1);
    } else if (s->causal) {
        int64_t at = 0;
        for (int i = 0; i < 2; i++) {
            push_run(runs, &n, 0, at, chunk[i][0], false, false);
            push_run(runs, &n, 0, chunk[i][0], chunk[i][1], true, false);
            at = chunk[i][1];
        }
    } else if (n_spans > 0) {
        push_run(runs, &n, 0, 0, (spans[n_spans - 1].end - 1) * s->block_size, false, false);
    }
    return n;
}

static size_t max_runs(const struct plan_shape *s)
{
    return (size_t)MAX_BLOCK_SPANS * (1 + s->views);
}

struct err *plan_group_create(const struct plan_shape *shape, struct plan_group *out)
{
    int degree = shape->degree;
    out->runs = calloc(max_runs(shape) * degree, sizeof *out->runs);
    out->first = calloc((size_t)degree + 1, sizeof *out->first);
    if (!out->runs || !out->first) {
        plan_group_free(out);
        return err_no_memory();
    }
    for (int r = 0; r < degree; r++) {
        int n = rank_runs(shape, r, out->runs + out->first[r]);
        assert((size_t)n <= max_runs(shape));
        out->first[r + 1] = out->first[r] + n;
    }
    return NULL;
}

void plan_group_free(struct plan_group *group)
{
    free(group->runs);
    free(group->first);
    *group = (struct plan_group){0};
}

struct err *plan_grow(void *items, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return NULL;
    size_t more = *capacity ? 2 * *capacity : 16;
    void *old, *moved;
    memcpy(&old, items, sizeof old);
    moved = reallocarray(old, more, size);
    if (!moved)
        return err_no_memory();
    memcpy(items, &moved, sizeof moved);
    *capacity = more;
    return NULL;
}

/* ---- The layout ---- */

static void *rows_array(int64_t n_rows, size_t size)
{
    return calloc(n_rows ? (size_t)n_rows : 1, size);
}

static struct err *fill_rows(struct plan_layout *l, const struct plan_document *documents,
                             size_t n_documents)
{
    l->stream = rows_array(l->n_rows, sizeof *l->stream);
    l->position = rows_array(l->n_rows, sizeof *l->position);
    l->rope = rows_array(l->n_rows, sizeof *l->rope);
    l->carries_loss = rows_array(l->n_rows, sizeof *l->carries_loss);
    if (!l->stream || !l->position || !l->rope || !l->carries_loss)
        return err_no_memory();

    struct plan_segments walk;
    struct plan_segment part;
    plan_segments_start(&walk, l->runs, l->n_runs, documents, n_documents);
    while (plan_segments_next(&walk, &part)) {
        for (int64_t i = part.begin, row = part.row; i < part.end; i++, row++) {
            l->stream[row] = part.run->stream;
            l->position[row] = i;
            l->rope[row] = part.document ? (int32_t)(i - part.document->begin) : 0;
            l->carries_loss[row] = part.run->carries_loss && part.document;
        }
    }
    return NULL;
}

static struct err *fill_intervals(const struct plan_layout *l,
                                  const struct plan_document *documents, size_t n_documents,
                                  struct plan_kind *kind)
{
    for (int p = 0; p < ATTENTION_PIECES; p++) {
        kind->pieces[p].intervals = rows_array(l->n_rows, sizeof *kind->pieces[p].intervals);
        if (!kind->pieces[p].intervals)
            return err_no_memory();
    }
    struct plan_segments walk;
    struct plan_segment part;
    plan_segments_start(&walk, l->runs, l->n_runs, documents, n_documents);
    while (plan_segments_next(&walk, &part)) {
        if (!part.document)
            continue;
        for (int64_t i = part.begin, row = part.row; i < part.end; i++, row++) {
            struct key_interval sees[ATTENTION_PIECES];
            plan_row_sees(&l->shape, part.document, kind->window, part.run->stream, i, sees);
            for (int p = 0; p < ATTENTION_PIECES; p++)
                kind->pieces[p].intervals[row] = sees[p];
        }
    }
    return NULL;
}

static struct err *fill_layout(struct plan_layout *l, const struct plan_group *group,
                               const struct plan_document *documents, size_t n_documents,
                               const int64_t *windows, int n_kinds)
{
    const struct plan_run *own = group->runs + group->first[l->rank];
    l->n_runs = group->first[l->rank + 1] - group->first[l->rank];
    l->runs = calloc(l->n_runs ? (size_t)l->n_runs : 1, sizeof *l->runs);
    l->kinds = calloc((size_t)n_kinds, sizeof *l->kinds);
    if (!l->runs || !l->kinds)
        return err_no_memory();
    l->n_kinds = n_kinds;
    if (l->n_runs > 0) {
        memcpy(l->runs, own, (size_t)l->n_runs * sizeof *own);
        l->n_rows = own[l->n_runs - 1].row + own[l->n_runs - 1].length;
    }
    TRY(fill_rows(l, documents, n_documents));
    for (int i = 0; i < n_kinds; i++) {
        struct plan_needs needs;
        struct err *e =
            plan_needs_create(&l->shape, group, documents, n_documents, windows[i], &needs);
        if (!e)
            e = plan_exchange_create(&l->shape, l->rank, group, &needs, windows[i], &l->kinds[i]);
        plan_needs_free(&needs);
        TRY(e);
        TRY(fill_intervals(l, documents, n_documents, &l->kinds[i]));
    }
    return NULL;
}

struct err *plan_layout_create(const struct plan_shape *shape, int rank,
                               const struct plan_document *documents, size_t n_documents,
                               const int64_t *windows, int n_kinds, struct plan_layout **out)
{
    *out = NULL;
    TRY(plan_check(shape, rank, documents, n_documents, windows, n_kinds));

    struct plan_layout *l = calloc(1, sizeof *l);
    if (!l)
        return err_no_memory();
    l->shape = *shape;
    l->rank = rank;

    struct plan_group group;
    struct err *e = plan_group_create(shape, &group);
    if (!e) {
        e = fill_layout(l, &group, documents, n_documents, windows, n_kinds);
        plan_group_free(&group);
    }
    if (e) {
        plan_layout_free(l);
        return e;
    }
    *out = l;
    return NULL;
}

void plan_layout_free(struct plan_layout *l)
{
    if (!l)
        return;
    for (int i = 0; i < l->n_kinds; i++)
        plan_kind_free(&l->kinds[i]);
    free(l->kinds);
    free(l->runs);
    free(l->stream);
    free(l->position);
    free(l->rope);
    free(l->carries_loss);
    free(l);
}

int64_t plan_layout_row(const struct plan_layout *layout, int stream, int64_t position)
{
    for (int i = 0; i < layout->n_runs; i++) {
        const struct plan_run *run = &layout->runs[i];
        if (run->stream == stream && position >= run->position &&
            position < run->position + run->length)
            return run->row + position - run->position;
    }
    return -1;
}

static struct err *kind_capacities(const struct plan_shape *shape, const struct plan_group *group,
                                   int first, int count, int64_t window, struct plan_capacity *out)
{
    /* A boundary only takes visibility away, so one document that fills the sequence sees, and
     * therefore moves, a superset of what any others do. */
    const struct plan_document whole = {0, shape->length};
    struct plan_needs needs;
    struct err *e = plan_needs_create(shape, group, &whole, 1, window, &needs);
    for (int i = 0; i < count && !e; i++) {
        struct plan_kind kind = {0};
        e = plan_exchange_create(shape, first + i, group, &needs, window, &kind);
        if (kind.send_rows > out[i].send_rows)
            out[i].send_rows = kind.send_rows;
        if (kind.buffer_rows > out[i].buffer_rows)
            out[i].buffer_rows = kind.buffer_rows;
        plan_kind_free(&kind);
    }
    plan_needs_free(&needs);
    return e;
}

struct err *plan_capacities(const struct plan_shape *shape, const struct plan_group *group,
                            int first, int count, const int64_t *windows, int n_kinds,
                            struct plan_capacity *out)
{
    for (int i = 0; i < count; i++) {
        out[i] = (struct plan_capacity){0};
        for (int k = group->first[first + i]; k < group->first[first + i + 1]; k++) {
            out[i].rows += group->runs[k].length;
            if (group->runs[k].carries_loss)
                out[i].loss_rows += group->runs[k].length;
        }
    }
    for (int i = 0; i < n_kinds; i++)
        TRY(kind_capacities(shape, group, first, count, windows[i], out));
    return NULL;
}

struct err *plan_capacity(const struct plan_shape *shape, int rank, const int64_t *windows,
                          int n_kinds, struct plan_capacity *out)
{
    *out = (struct plan_capacity){0};
    TRY(plan_check(shape, rank, NULL, 0, windows, n_kinds));
    struct plan_group group;
    TRY(plan_group_create(shape, &group));
    struct err *e = plan_capacities(shape, &group, rank, 1, windows, n_kinds, out);
    plan_group_free(&group);
    return e;
}
