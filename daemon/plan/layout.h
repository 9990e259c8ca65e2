/* What the files of the plan share among themselves; others include plan.h.
 *
 * A layout is made in three steps, each of which needs only the one before: runs (layout.c: which
 * rows each rank holds), exchanges (exchange.c: which keys travel and where they land), and what
 * each row sees (visibility.c). Capacity and estimates stop after the second. */
#ifndef PLAN_LAYOUT_H
#define PLAN_LAYOUT_H

#include "daemon/plan/plan.h"

/* Positions [begin, end) of a stream, or blocks. */
struct plan_span {
    int64_t begin;
    int64_t end;
};

/* The runs of every rank of a group: those of rank r are runs[first[r]] .. runs[first[r + 1] - 1],
 * in r's local order. */
struct plan_group {
    struct plan_run *runs;
    int *first; /* [degree + 1] */
};

struct err *plan_group_create(const struct plan_shape *shape, struct plan_group *out);
void plan_group_free(struct plan_group *group);

/* ERR_INVALID where a shape, rank, document or window cannot be. */
struct err *plan_check(const struct plan_shape *shape, int rank,
                       const struct plan_document *documents, size_t n_documents,
                       const int64_t *windows, int n_kinds);

/* Rows of one run that lie in one document, or in none. */
struct plan_segment {
    const struct plan_run *run;
    int64_t begin, end;                   /* in the stream */
    int64_t row;                          /* local row of `begin` */
    const struct plan_document *document; /* NULL: padding */
};

/* Cuts runs at document boundaries, in local order: start, then next until it says false. */
struct plan_segments {
    const struct plan_run *runs;
    int n_runs, run;
    const struct plan_document *documents;
    size_t n_documents, document;
    int64_t position;
};

void plan_segments_start(struct plan_segments *walk, const struct plan_run *runs, int n_runs,
                         const struct plan_document *documents, size_t n_documents);
bool plan_segments_next(struct plan_segments *walk, struct plan_segment *out);

/* What the row at `position` of `stream` sees of its document in a layer of this window: out[0]
 * corrupted keys, out[1] clean keys. {0, 0}: nothing. */
void plan_row_sees(const struct plan_shape *shape, const struct plan_document *document,
                   int64_t window, int stream, int64_t position,
                   struct key_interval out[ATTENTION_PIECES]);

/* Visible pairs of these runs, without making a layout or looking at rows one by one. */
int64_t plan_runs_pairs(const struct plan_shape *shape, const struct plan_run *runs, int n_runs,
                        const struct plan_document *documents, size_t n_documents, int64_t window);

/* The clean rows that any row of these runs sees: sorted, disjoint, not adjacent. Window > 0.
 * The caller frees *out. */
struct err *plan_clean_needs(const struct plan_shape *shape, const struct plan_run *runs,
                             int n_runs, const struct plan_document *documents, size_t n_documents,
                             int64_t window, struct plan_span **out, size_t *n_out);

/* plan_clean_needs of every rank of a group in a layer of this window; empty where the exchange
 * does not depend on them. On failure *out still has to be freed. */
struct plan_needs {
    int degree;
    struct plan_span **spans; /* [degree][counts[rank]] */
    size_t *counts;
};
struct err *plan_needs_create(const struct plan_shape *shape, const struct plan_group *group,
                              const struct plan_document *documents, size_t n_documents,
                              int64_t window, struct plan_needs *out);
void plan_needs_free(struct plan_needs *needs);

/* Everything of a kind but its intervals. On failure *kind still has to be freed. */
struct err *plan_exchange_create(const struct plan_shape *shape, int rank,
                                 const struct plan_group *group, const struct plan_needs *needs,
                                 int64_t window, struct plan_kind *kind);
void plan_kind_free(struct plan_kind *kind);

/* plan_capacity of `count` ranks from `first` on, of a shape that was checked. */
struct err *plan_capacities(const struct plan_shape *shape, const struct plan_group *group,
                            int first, int count, const int64_t *windows, int n_kinds,
                            struct plan_capacity *out);

/* Makes room for one more item of `size` bytes behind the first `count`; *items may move. */
struct err *plan_grow(void *items, size_t count, size_t *capacity, size_t size);

#endif
