/* Who sees whom. The rule, for a query in block q of its document:
 *
 *   clean row       clean keys of blocks k <= q
 *   corrupted row   clean keys of blocks k < q, and its own block of its own view, both directions
 *   causal row      clean keys up to itself
 *
 * never beyond its document; with a window W a key of an earlier block (causal: any key) at
 * position j is seen from position i only if j > i - W, while the own block stays whole. So a row
 * sees one interval of clean keys and one of corrupted keys. Rows of padding see nothing and
 * nobody sees them.
 */
#include "daemon/plan/layout.h"

#include <stdlib.h>

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static struct key_interval interval(int64_t begin, int64_t end)
{
    return begin < end ? (struct key_interval){begin, end} : (struct key_interval){0, 0};
}

void plan_row_sees(const struct plan_shape *shape, const struct plan_document *document,
                   int64_t window, int stream, int64_t position,
                   struct key_interval out[ATTENTION_PIECES])
{
    /* The first key that the window leaves visible. */
    int64_t reach = window > 0 ? position - window + 1 : 0;
    out[0] = out[1] = (struct key_interval){0, 0};
    if (shape->causal) {
        out[1] = interval(max64(document->begin, reach), position + 1);
        return;
    }
    int64_t block = position - position % shape->block_size;
    int64_t end = min64(document->end, block + shape->block_size);
    if (stream == 0) {
        out[1] = interval(max64(document->begin, min64(block, reach)), end);
    } else {
        int64_t origin = stream * shape->length;
        out[0] = interval(origin + max64(document->begin, block), origin + end);
        out[1] = interval(max64(document->begin, reach), block);
    }
}

/* ---- Runs cut at document boundaries ---- */

/* The first document that ends after `position`. */
static size_t find_document(const struct plan_document *documents, size_t n, int64_t position)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (documents[middle].end > position)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void plan_segments_start(struct plan_segments *walk, const struct plan_run *runs, int n_runs,
                         const struct plan_document *documents, size_t n_documents)
{
    *walk = (struct plan_segments){
        .runs = runs, .n_runs = n_runs, .documents = documents, .n_documents = n_documents};
    if (n_runs > 0) {
        walk->position = runs[0].position;
        walk->document = find_document(documents, n_documents, walk->position);
    }
}

bool plan_segments_next(struct plan_segments *walk, struct plan_segment *out)
{
    if (walk->run == walk->n_runs)
        return false;
    const struct plan_run *run = &walk->runs[walk->run];
    int64_t run_end = run->position + run->length;
    const struct plan_document *document =
        walk->document < walk->n_documents ? &walk->documents[walk->document] : NULL;

    *out = (struct plan_segment){.run = run,
                                 .begin = walk->position,
                                 .end = run_end,
                                 .row = run->row + walk->position - run->position};
    if (document && document->begin <= walk->position) {
        out->document = document;
        out->end = min64(run_end, document->end);
    } else if (document) {
        out->end = min64(run_end, document->begin);
    }

    walk->position = out->end;
    if (walk->position == run_end) {
        if (++walk->run == walk->n_runs)
            return true;
        walk->position = walk->runs[walk->run].position;
        walk->document = find_document(walk->documents, walk->n_documents, walk->position);
    }
    while (walk->document < walk->n_documents &&
           walk->documents[walk->document].end <= walk->position)
        walk->document++;
    return true;
}

/* ---- Sums and unions over rows ---- */

static int64_t pairs_of(const struct key_interval *i)
{
    return i->end - i->begin;
}

int64_t plan_visible_pairs(const struct plan_layout *layout, int kind)
{
    int64_t pairs = 0;
    for (int p = 0; p < ATTENTION_PIECES; p++)
        for (int64_t row = 0; row < layout->n_rows; row++)
            pairs += pairs_of(&layout->kinds[kind].pieces[p].intervals[row]);
    return pairs;
}

/* Sums in closed form. A row at position i of block q = [p, p + b), whatever its stream, sees
 *
 *     min(document's end, p + b) - max(document's begin, min(p, i - W + 1))
 *
 * keys: a corrupted row's own block stands in for the clean one. The first term is its block's end,
 * cut in the document's last block; in the second the inner minimum is p - max(0, W - 1 - (i - p))
 * and never falls, so the document's begin wins up to one row and not behind it. Causal rows are
 * those of blocks of one row. No sum leaves 63 bits: positions stay below 2^27, and so does W where
 * it matters. */

/* Sum of p over the rows [0, n). */
static int64_t sum_blocks(int64_t n, int64_t b)
{
    int64_t q = n / b;
    return b * b * (q * (q - 1) / 2) + n % b * q * b;
}

/* Sum of max(0, w - (i - p)) over the rows [0, n). */
static int64_t sum_reach(int64_t n, int64_t b, int64_t w)
{
    int64_t whole = min64(b, w), part = min64(n % b, w);
    return n / b * (whole * w - whole * (whole - 1) / 2) + part * w - part * (part - 1) / 2;
}

static int64_t sum_ends(const struct plan_segment *part, int64_t b)
{
    int64_t last = (part->document->end - 1) / b * b; /* block */
    int64_t cut_rows = max64(0, part->end - max64(part->begin, last));
    return sum_blocks(part->end, b) - sum_blocks(part->begin, b) + b * (part->end - part->begin) -
           cut_rows * (last + b - part->document->end);
}

static int64_t sum_begins(const struct plan_segment *part, int64_t b, int64_t window)
{
    int64_t document = part->document->begin, from = part->end;
    if (window > 0 && window < part->end)
        from = min64(from,
                     max64(part->begin, max64((document + b - 1) / b * b, document + window - 1)));
    int64_t sum = document * (from - part->begin);
    if (from < part->end)
        sum += sum_blocks(part->end, b) - sum_blocks(from, b) -
               sum_reach(part->end, b, window - 1) + sum_reach(from, b, window - 1);
    return sum;
}

int64_t plan_runs_pairs(const struct plan_shape *shape, const struct plan_run *runs, int n_runs,
                        const struct plan_document *documents, size_t n_documents, int64_t window)
{
    int64_t pairs = 0, b = shape->causal ? 1 : shape->block_size;
    struct plan_segments walk;
    struct plan_segment part;
    plan_segments_start(&walk, runs, n_runs, documents, n_documents);
    while (plan_segments_next(&walk, &part))
        if (part.document)
            pairs += sum_ends(&part, b) - sum_begins(&part, b, window);
    return pairs;
}

struct span_list {
    struct plan_span *items;
    size_t count, capacity;
};

/* The union of what the rows [begin, end) of a segment see of the clean stream, where it is known
 * to be one interval. Intervals move right with the row, so it reaches from where the first row's
 * begins to where the last row's ends. */
static struct err *push_union(const struct plan_shape *shape, const struct plan_segment *part,
                              int64_t begin, int64_t end, int64_t window, struct span_list *list)
{
    struct plan_span span;
    if (part->run->stream > 0) {
        /* Not asked from plan_row_sees: the intervals of single rows may be empty. */
        span.begin = max64(part->document->begin, begin - window + 1);
        span.end = (end - 1) - (end - 1) % shape->block_size;
    } else {
        struct key_interval first[ATTENTION_PIECES], last[ATTENTION_PIECES];
        plan_row_sees(shape, part->document, window, 0, begin, first);
        plan_row_sees(shape, part->document, window, 0, end - 1, last);
        span = (struct plan_span){first[1].begin, last[1].end};
    }
    if (span.begin >= span.end)
        return NULL;
    TRY(plan_grow(&list->items, list->count, &list->capacity, sizeof *list->items));
    list->items[list->count++] = span;
    return NULL;
}

static struct err *push_segment(const struct plan_shape *shape, const struct plan_segment *part,
                                int64_t window, struct span_list *list)
{
    int64_t b = shape->block_size;
    /* Clean rows see themselves, so their union has no gap. That of corrupted rows has none if the
     * first row of a block sees the whole block before. */
    if (part->run->stream == 0 || window > b)
        return push_union(shape, part, part->begin, part->end, window, list);
    for (int64_t begin = part->begin; begin < part->end;) {
        int64_t end = min64(part->end, begin - begin % b + b);
        TRY(push_union(shape, part, begin, end, window, list));
        begin = end;
    }
    return NULL;
}

static int compare_spans(const void *a, const void *b)
{
    const struct plan_span *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static void merge_spans(struct span_list *list)
{
    size_t n = 0;
    if (list->count > 0)
        qsort(list->items, list->count, sizeof *list->items, compare_spans);
    for (size_t i = 0; i < list->count; i++) {
        struct plan_span span = list->items[i];
        if (n > 0 && span.begin <= list->items[n - 1].end)
            list->items[n - 1].end = max64(list->items[n - 1].end, span.end);
        else
            list->items[n++] = span;
    }
    list->count = n;
}

struct err *plan_clean_needs(const struct plan_shape *shape, const struct plan_run *runs,
                             int n_runs, const struct plan_document *documents, size_t n_documents,
                             int64_t window, struct plan_span **out, size_t *n_out)
{
    struct span_list list = {0};
    struct plan_segments walk;
    struct plan_segment part;
    plan_segments_start(&walk, runs, n_runs, documents, n_documents);
    while (plan_segments_next(&walk, &part)) {
        /* Every view has the same blocks on a rank and so sees the same clean rows. */
        if (!part.document || part.run->stream > 1)
            continue;
        struct err *e = push_segment(shape, &part, window, &list);
        if (e) {
            free(list.items);
            return e;
        }
    }
    merge_spans(&list);
    *out = list.items;
    *n_out = list.count;
    return NULL;
}
