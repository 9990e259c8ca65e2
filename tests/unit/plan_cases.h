/* Random shapes, documents and windows for the tests of the plan, and the visibility rule written
 * out key by key. Seeded: the same cases on every run. */
#ifndef TESTS_PLAN_CASES_H
#define TESTS_PLAN_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/base/philox.h"
#include "daemon/plan/plan.h"

#define CASE_DOCUMENTS 16
#define CASE_KINDS 3

struct plan_case {
    struct plan_shape shape;
    struct plan_document documents[CASE_DOCUMENTS];
    size_t n_documents;
    int64_t windows[CASE_KINDS];
    int n_kinds;
};

struct dice {
    uint64_t sample, index;
};

/* Uniform in [low, high]. */
static inline int64_t roll(struct dice *d, int64_t low, int64_t high)
{
    return low + (int64_t)(philox_bits(7, PHILOX_ORDER, d->sample, 0, d->index++) %
                           (uint64_t)(high - low + 1));
}

/* Documents that end anywhere or on block boundaries, with gaps of padding or without. */
static inline void random_documents(struct dice *d, struct plan_case *c)
{
    int64_t align = roll(d, 0, 1) ? c->shape.block_size : 1;
    bool gaps = roll(d, 0, 2) == 0;
    int64_t at = 0, limit = c->shape.length;
    if (roll(d, 0, 3) == 0)
        limit -= roll(d, 0, limit / 2); /* padding at the end */
    c->n_documents = 0;
    if (roll(d, 0, 3) == 0) {
        c->documents[c->n_documents++] = (struct plan_document){0, c->shape.length};
        return;
    }
    while (at < limit && c->n_documents < CASE_DOCUMENTS) {
        int64_t begin = at + (gaps ? roll(d, 0, 3) : 0);
        int64_t end = begin + roll(d, 0, 1 + c->shape.length / 3);
        begin = begin / align * align;
        end = (end + align - 1) / align * align;
        if (begin < at)
            begin = at;
        if (end > limit)
            end = limit;
        if (begin > end)
            break;
        c->documents[c->n_documents++] = (struct plan_document){begin, end};
        at = end;
    }
}

static inline struct plan_case random_case(uint64_t number, enum parallel_mode mode)
{
    struct dice d = {.sample = number * 4 + mode};
    struct plan_case c = {0};
    struct plan_shape *s = &c.shape;
    s->mode = mode;
    s->causal = roll(&d, 0, 4) == 0;
    s->views = s->causal ? 0 : (int)roll(&d, 1, 3);
    s->block_size = s->causal ? 1 : roll(&d, 1, 8);
    s->degree = mode == MODE_NONE ? 1 : (int)roll(&d, 1, 8);
    int64_t blocks = roll(&d, 1, 1 + 60 / s->block_size);
    s->length = blocks * s->block_size;
    while (mode != MODE_NONE && s->length < 2 * s->degree)
        s->length += s->block_size;
    random_documents(&d, &c);
    c.n_kinds = (int)roll(&d, 1, CASE_KINDS);
    int64_t window = roll(&d, 0, 1) ? 0 : roll(&d, 1, roll(&d, 0, 1) ? 8 : s->length);
    for (int i = 0; i < c.n_kinds; i++) {
        c.windows[i] = window;
        window += 1 + roll(&d, 0, s->length / 2);
    }
    return c;
}

static inline int document_of(const struct plan_case *c, int64_t position)
{
    for (size_t i = 0; i < c->n_documents; i++)
        if (position >= c->documents[i].begin && position < c->documents[i].end)
            return (int)i;
    return -1;
}

/* Does the row (stream, i) see the key (key_stream, j)? */
static inline bool rule_sees(const struct plan_case *c, int64_t window, int stream, int64_t i,
                             int key_stream, int64_t j)
{
    int64_t q = i / c->shape.block_size, k = j / c->shape.block_size;
    bool in_window = window == 0 || j > i - window;
    if (document_of(c, i) < 0 || document_of(c, i) != document_of(c, j))
        return false;
    if (c->shape.causal)
        return j <= i && in_window;
    if (stream == 0)
        return key_stream == 0 && (k == q || (k < q && in_window));
    if (key_stream == 0)
        return k < q && in_window;
    return key_stream == stream && k == q;
}

static inline void must(struct err *e)
{
    if (e)
        fail_msg("%s", err_message(e));
}

/* The layouts of all ranks; freed by free_layouts. */
static inline struct plan_layout **make_layouts(const struct plan_case *c)
{
    struct plan_layout **all = calloc((size_t)c->shape.degree, sizeof(struct plan_layout *));
    assert_non_null(all);
    for (int r = 0; r < c->shape.degree; r++)
        must(plan_layout_create(&c->shape, r, c->documents, c->n_documents, c->windows, c->n_kinds,
                                &all[r]));
    return all;
}

static inline void free_layouts(const struct plan_case *c, struct plan_layout **all)
{
    for (int r = 0; r < c->shape.degree; r++)
        plan_layout_free(all[r]);
    free(all);
}

#endif
