/* Who sends what. A layer of full attention gathers the exchanged rows of every rank, each rank's
 * in its local order, padded to the same count. A windowed layer under CSBP moves with one
 * all-to-all the clean rows that some query of the receiver sees, the receiver's own among them so
 * that one buffer holds all. Both ends derive the same numbers from the same inputs: what rank r
 * needs of rank s is the union of what r's rows see, cut by the runs that s holds, in s's order.
 */
#include "daemon/plan/layout.h"

#include <stdlib.h>

/* ---- Chunks ---- */

struct chunk_list {
    struct key_chunk *items;
    size_t count, capacity;
};

static struct err *push_chunk(struct chunk_list *list, int64_t position, int64_t length,
                              int64_t row)
{
    TRY(plan_grow(&list->items, list->count, &list->capacity, sizeof *list->items));
    list->items[list->count++] =
        (struct key_chunk){.position = position, .length = length, .row = row};
    return NULL;
}

static int compare_chunks(const void *a, const void *b)
{
    const struct key_chunk *x = a, *y = b;
    return (x->position > y->position) - (x->position < y->position);
}

/* Sorts the chunks, joins those that adjoin in positions and rows, and hands them to a piece. */
static void finish_chunks(struct chunk_list *list, struct plan_kind *kind, int piece)
{
    size_t n = 0;
    if (list->count > 0)
        qsort(list->items, list->count, sizeof *list->items, compare_chunks);
    for (size_t i = 0; i < list->count; i++) {
        struct key_chunk chunk = list->items[i];
        struct key_chunk *last = n > 0 ? &list->items[n - 1] : NULL;
        if (last && last->position + last->length == chunk.position &&
            last->row + last->length == chunk.row)
            last->length += chunk.length;
        else
            list->items[n++] = chunk;
    }
    kind->pieces[piece].chunks = list->items;
    kind->pieces[piece].n_chunks = (int)n;
    *list = (struct chunk_list){0};
}

/* The keys of these runs that belong to a piece (0: corrupted, 1: clean), lying from `row` on:
 * all runs at their local rows, or, packed behind each other, the exchanged ones. */
static struct err *push_runs(const struct plan_shape *shape, const struct plan_run *runs,
                             int n_runs, int piece, bool packed, int64_t row,
                             struct chunk_list *list)
{
    for (int i = 0; i < n_runs; i++) {
        const struct plan_run *run = &runs[i];
        if (packed && !run->exchanged)
            continue;
        if ((run->stream > 0) == (piece == 0))
            TRY(push_chunk(list, run->stream * shape->length + run->position, run->length,
                           packed ? row : run->row));
        row += run->length;
    }
    return NULL;
}

static struct err *local_piece(const struct plan_shape *shape, const struct plan_run *own, int n,
                               struct plan_kind *kind, int piece)
{
    struct chunk_list list = {0};
    struct err *e = push_runs(shape, own, n, piece, false, 0, &list);
    finish_chunks(&list, kind, piece);
    kind->pieces[piece].local = true;
    return e;
}

/* ---- What is sent ---- */

/* Appends to kind->send; joins ranges that adjoin, but not across `first`, where a new
 * destination's begin. */
static struct err *push_send(struct plan_kind *kind, size_t *capacity, int first, int64_t row,
                             int64_t length)
{
    kind->send_rows += length;
    if (kind->n_send > first) {
        struct plan_range *last = &kind->send[kind->n_send - 1];
        if (last->row + last->length == row) {
            last->length += length;
            return NULL;
        }
    }
    TRY(plan_grow(&kind->send, (size_t)kind->n_send, capacity, sizeof *kind->send));
    kind->send[kind->n_send++] = (struct plan_range){.row = row, .length = length};
    return NULL;
}

/* ---- Gather ---- */

static int64_t exchanged_rows(const struct plan_group *group, int rank)
{
    int64_t rows = 0;
    for (int i = group->first[rank]; i < group->first[rank + 1]; i++)
        if (group->runs[i].exchanged)
            rows += group->runs[i].length;
    return rows;
}

static struct err *gathered_piece(const struct plan_shape *shape, const struct plan_group *group,
                                  struct plan_kind *kind, int piece)
{
    struct chunk_list list = {0};
    struct err *e = NULL;
    for (int r = 0; r < shape->degree && !e; r++)
        e = push_runs(shape, group->runs + group->first[r], group->first[r + 1] - group->first[r],
                      piece, true, r * kind->gather_rows, &list);
    finish_chunks(&list, kind, piece);
    return e;
}

static struct err *gather(const struct plan_shape *shape, int rank, const struct plan_group *group,
                          struct plan_kind *kind)
{
    kind->exchange = EXCHANGE_GATHER;
    for (int r = 0; r < shape->degree; r++) {
        int64_t rows = exchanged_rows(group, r);
        if (rows > kind->gather_rows)
            kind->gather_rows = rows;
        if (r != rank)
            kind->wire_rows += rows;
    }
    kind->buffer_rows = shape->degree * kind->gather_rows;

    size_t capacity = 0;
    for (int i = group->first[rank]; i < group->first[rank + 1]; i++)
        if (group->runs[i].exchanged)
            TRY(push_send(kind, &capacity, 0, group->runs[i].row, group->runs[i].length));
    if (shape->mode == MODE_CP)
        TRY(gathered_piece(shape, group, kind, 0));
    return gathered_piece(shape, group, kind, 1);
}

/* ---- All-to-all ---- */

/* What one rank needs of what another holds, stretch by stretch in the holder's local order. */
struct overlaps {
    const struct plan_span *needs;
    size_t n_needs, need;
    const struct plan_run *runs;
    int n_runs, run;
};

/* The first need that ends behind `position`. */
static size_t find_need(const struct overlaps *o, int64_t position)
{
    size_t low = 0, high = o->n_needs;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (o->needs[middle].end > position)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static struct overlaps overlaps_start(const struct plan_span *needs, size_t n_needs,
                                      const struct plan_group *group, int holder)
{
    struct overlaps o = {.needs = needs,
                         .n_needs = n_needs,
                         .runs = group->runs + group->first[holder],
                         .n_runs = group->first[holder + 1] - group->first[holder]};
    if (o.n_runs > 0)
        o.need = find_need(&o, o.runs[0].position);
    return o;
}

/* *row is the holder's local row of the stretch's first. */
static bool overlaps_next(struct overlaps *o, struct plan_span *out, int64_t *row)
{
    while (o->run < o->n_runs) {
        const struct plan_run *run = &o->runs[o->run];
        int64_t run_end = run->position + run->length;
        if (run->exchanged && o->need < o->n_needs && o->needs[o->need].begin < run_end) {
            const struct plan_span *need = &o->needs[o->need++];
            out->begin = need->begin > run->position ? need->begin : run->position;
            out->end = need->end < run_end ? need->end : run_end;
            *row = run->row + out->begin - run->position;
            return true;
        }
        if (++o->run < o->n_runs)
            o->need = find_need(o, o->runs[o->run].position);
    }
    return false;
}

static struct err *send_to(int destination, struct overlaps o, struct plan_kind *kind,
                           size_t *capacity)
{
    struct plan_span span;
    int64_t row;
    int first = kind->n_send;
    while (overlaps_next(&o, &span, &row)) {
        TRY(push_send(kind, capacity, first, row, span.end - span.begin));
        kind->send_counts[destination] += span.end - span.begin;
    }
    return NULL;
}

static struct err *receive_from(int source, struct overlaps o, struct plan_kind *kind,
                                struct chunk_list *chunks)
{
    struct plan_span span;
    int64_t row;
    while (overlaps_next(&o, &span, &row)) {
        TRY(push_chunk(chunks, span.begin, span.end - span.begin, kind->buffer_rows));
        kind->recv_counts[source] += span.end - span.begin;
        kind->buffer_rows += span.end - span.begin;
    }
    return NULL;
}

static struct err *receive(const struct plan_span *needs, size_t n_needs, int rank, int degree,
                           const struct plan_group *group, struct plan_kind *kind)
{
    struct chunk_list chunks = {0};
    struct err *e = NULL;
    for (int s = 0; s < degree && !e; s++) {
        e = receive_from(s, overlaps_start(needs, n_needs, group, s), kind, &chunks);
        if (s != rank)
            kind->wire_rows += kind->recv_counts[s];
    }
    finish_chunks(&chunks, kind, 1);
    return e;
}

static bool moves_needs(const struct plan_shape *shape, int64_t window)
{
    return shape->degree > 1 && shape->mode == MODE_CSBP && window > 0;
}

static struct err *all_to_all(const struct plan_shape *shape, int rank,
                              const struct plan_group *group, const struct plan_needs *needs,
                              struct plan_kind *kind)
{
    kind->exchange = EXCHANGE_ALL_TO_ALL;
    kind->send_counts = calloc((size_t)shape->degree, sizeof *kind->send_counts);
    kind->recv_counts = calloc((size_t)shape->degree, sizeof *kind->recv_counts);
    if (!kind->send_counts || !kind->recv_counts)
        return err_no_memory();

    size_t capacity = 0;
    for (int r = 0; r < shape->degree; r++)
        TRY(send_to(r, overlaps_start(needs->spans[r], needs->counts[r], group, rank), kind,
                    &capacity));
    return receive(needs->spans[rank], needs->counts[rank], rank, shape->degree, group, kind);
}

struct err *plan_needs_create(const struct plan_shape *shape, const struct plan_group *group,
                              const struct plan_document *documents, size_t n_documents,
                              int64_t window, struct plan_needs *out)
{
    *out = (struct plan_needs){.degree = shape->degree};
    if (!moves_needs(shape, window))
        return NULL;
    out->spans = calloc((size_t)shape->degree, sizeof *out->spans);
    out->counts = calloc((size_t)shape->degree, sizeof *out->counts);
    if (!out->spans || !out->counts)
        return err_no_memory();
    for (int r = 0; r < shape->degree; r++)
        TRY(plan_clean_needs(shape, group->runs + group->first[r],
                             group->first[r + 1] - group->first[r], documents, n_documents, window,
                             &out->spans[r], &out->counts[r]));
    return NULL;
}

void plan_needs_free(struct plan_needs *needs)
{
    for (int r = 0; needs->spans && r < needs->degree; r++)
        free(needs->spans[r]);
    free(needs->spans);
    free(needs->counts);
    *needs = (struct plan_needs){0};
}

struct err *plan_exchange_create(const struct plan_shape *shape, int rank,
                                 const struct plan_group *group, const struct plan_needs *needs,
                                 int64_t window, struct plan_kind *kind)
{
    const struct plan_run *own = group->runs + group->first[rank];
    int n_own = group->first[rank + 1] - group->first[rank];
    bool exchanging = shape->degree > 1 && (shape->mode == MODE_CP || shape->mode == MODE_CSBP);

    kind->window = window;
    kind->exchange = EXCHANGE_NONE;
    if (!exchanging || shape->mode == MODE_CSBP)
        TRY(local_piece(shape, own, n_own, kind, 0));
    if (!exchanging)
        return local_piece(shape, own, n_own, kind, 1);
    if (moves_needs(shape, window))
        return all_to_all(shape, rank, group, needs, kind);
    return gather(shape, rank, group, kind);
}

void plan_kind_free(struct plan_kind *kind)
{
    for (int p = 0; p < ATTENTION_PIECES; p++) {
        free(kind->pieces[p].chunks);
        free(kind->pieces[p].intervals);
    }
    free(kind->send);
    free(kind->send_counts);
    free(kind->recv_counts);
    *kind = (struct plan_kind){0};
}
