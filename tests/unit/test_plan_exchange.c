/* Exchanges of the plan: every rank's are carried out on rows whose payload is their key position,
 * and every key that a row sees must be found where the chunks say. */
#include "plan_cases.h"

#define CASES 1200

/* One kind of all ranks, as it runs. */
struct simulation {
    const struct plan_case *c;
    struct plan_layout **all;
    int kind;
    int64_t *sent[8];   /* what each rank packed */
    int64_t *buffer[8]; /* what each rank received; -1: padding */
    int64_t moved[8];   /* rows from other ranks */
};

static const struct plan_kind *kind_of(const struct simulation *sim, int rank)
{
    return &sim->all[rank]->kinds[sim->kind];
}

static int64_t tag(const struct plan_layout *l, int64_t row)
{
    return l->stream[row] * l->shape.length + l->position[row];
}

static int64_t *tags(int64_t n)
{
    int64_t *t = calloc(n ? (size_t)n : 1, sizeof *t);
    assert_non_null(t);
    for (int64_t i = 0; i < n; i++)
        t[i] = -1;
    return t;
}

static void pack(struct simulation *sim, int rank)
{
    const struct plan_layout *l = sim->all[rank];
    const struct plan_kind *k = kind_of(sim, rank);
    sim->sent[rank] = tags(k->send_rows);
    int64_t n = 0;
    for (int i = 0; i < k->n_send; i++)
        for (int64_t j = 0; j < k->send[i].length; j++) {
            assert_true(k->send[i].row + j < l->n_rows && n < k->send_rows);
            sim->sent[rank][n++] = tag(l, k->send[i].row + j);
        }
    assert_int_equal(n, k->send_rows);
}

static void run_gather(struct simulation *sim, int rank)
{
    const struct plan_kind *k = kind_of(sim, rank);
    int degree = sim->c->shape.degree;
    assert_int_equal(k->buffer_rows, degree * k->gather_rows);
    assert_null(k->send_counts);
    bool full = false;
    for (int s = 0; s < degree; s++) {
        const struct plan_kind *from = kind_of(sim, s);
        assert_int_equal(from->gather_rows, k->gather_rows);
        assert_true(from->send_rows <= k->gather_rows);
        full |= from->send_rows == k->gather_rows; /* no more padding than needed */
        memcpy(sim->buffer[rank] + s * k->gather_rows, sim->sent[s],
               (size_t)from->send_rows * sizeof(int64_t));
        sim->moved[rank] += s == rank ? 0 : from->send_rows;
    }
    assert_true(full);
}

static void run_all_to_all(struct simulation *sim, int rank)
{
    const struct plan_kind *k = kind_of(sim, rank);
    int degree = sim->c->shape.degree;
    int64_t at = 0;
    for (int s = 0; s < degree; s++) {
        const struct plan_kind *from = kind_of(sim, s);
        int64_t offset = 0;
        for (int r = 0; r < rank; r++)
            offset += from->send_counts[r];
        assert_int_equal(from->send_counts[rank], k->recv_counts[s]);
        assert_true(at + k->recv_counts[s] <= k->buffer_rows);
        memcpy(sim->buffer[rank] + at, sim->sent[s] + offset,
               (size_t)k->recv_counts[s] * sizeof(int64_t));
        at += k->recv_counts[s];
        sim->moved[rank] += s == rank ? 0 : k->recv_counts[s];
    }
    assert_int_equal(at, k->buffer_rows);

    /* No range serves two destinations. */
    int range = 0;
    for (int r = 0; r < degree; r++) {
        int64_t rows = 0;
        while (rows < k->send_counts[r])
            rows += k->send[range++].length;
        assert_int_equal(rows, k->send_counts[r]);
    }
    assert_int_equal(range, k->n_send);
}

static void simulate(struct simulation *sim, const struct plan_case *c, struct plan_layout **all,
                     int kind)
{
    *sim = (struct simulation){.c = c, .all = all, .kind = kind};
    for (int r = 0; r < c->shape.degree; r++)
        pack(sim, r);
    for (int r = 0; r < c->shape.degree; r++) {
        const struct plan_kind *k = kind_of(sim, r);
        bool shares =
            c->shape.degree > 1 && (c->shape.mode == MODE_CP || c->shape.mode == MODE_CSBP);
        enum exchange_type expected = !shares ? EXCHANGE_NONE
                                      : c->shape.mode == MODE_CSBP && k->window > 0
                                          ? EXCHANGE_ALL_TO_ALL
                                          : EXCHANGE_GATHER;
        assert_int_equal(k->exchange, expected);
        sim->buffer[r] = tags(k->buffer_rows);
        if (k->exchange == EXCHANGE_GATHER)
            run_gather(sim, r);
        else if (k->exchange == EXCHANGE_ALL_TO_ALL)
            run_all_to_all(sim, r);
        else
            assert_true(k->send_rows == 0 && k->buffer_rows == 0 && k->n_send == 0);
        assert_int_equal(k->wire_rows, sim->moved[r]);
    }
}

static void end_simulation(struct simulation *sim)
{
    for (int r = 0; r < sim->c->shape.degree; r++) {
        free(sim->sent[r]);
        free(sim->buffer[r]);
    }
}

/* Sorted, disjoint, joined where they can be, and each key where it is said to be. */
static void check_chunks(const struct simulation *sim, int rank, int piece)
{
    const struct plan_layout *l = sim->all[rank];
    const struct plan_kind *k = kind_of(sim, rank);
    for (int i = 0; i < k->pieces[piece].n_chunks; i++) {
        const struct key_chunk *chunk = &k->pieces[piece].chunks[i];
        assert_true(chunk->length > 0);
        if (i > 0) {
            const struct key_chunk *last = chunk - 1;
            assert_true(last->position + last->length <= chunk->position);
            assert_false(last->position + last->length == chunk->position &&
                         last->row + last->length == chunk->row);
        }
        for (int64_t j = 0; j < chunk->length; j++) {
            int64_t row = chunk->row + j;
            assert_true(row >= 0 && row < (k->pieces[piece].local ? l->n_rows : k->buffer_rows));
            assert_int_equal(k->pieces[piece].local ? tag(l, row) : sim->buffer[rank][row],
                             chunk->position + j);
        }
    }
}

/* Every visible key is in a chunk. Marks the keys that some row sees. */
static void check_cover(const struct simulation *sim, int rank, int piece, bool *used)
{
    const struct plan_layout *l = sim->all[rank];
    const struct plan_kind *k = kind_of(sim, rank);
    for (int64_t row = 0; row < l->n_rows; row++) {
        const struct key_interval *sees = &k->pieces[piece].intervals[row];
        for (int64_t key = sees->begin; key < sees->end; key++) {
            bool found = false;
            for (int i = 0; i < k->pieces[piece].n_chunks && !found; i++)
                found =
                    key >= k->pieces[piece].chunks[i].position &&
                    key < k->pieces[piece].chunks[i].position + k->pieces[piece].chunks[i].length;
            assert_true(found);
            used[key] = true;
        }
    }
}

static void check_kind(const struct simulation *sim, int rank)
{
    const struct plan_kind *k = kind_of(sim, rank);
    int64_t keys = (1 + sim->c->shape.views) * sim->c->shape.length;
    bool *used = calloc((size_t)keys, sizeof *used);
    assert_non_null(used);
    for (int p = 0; p < ATTENTION_PIECES; p++) {
        check_chunks(sim, rank, p);
        check_cover(sim, rank, p, used);
    }
    if (k->exchange == EXCHANGE_ALL_TO_ALL) { /* nothing travels that nobody sees, nor twice */
        int64_t needed = 0;
        for (int64_t key = 0; key < sim->c->shape.length; key++)
            needed += used[key];
        assert_int_equal(k->buffer_rows, needed);
    }
    free(used);
}

static void every_visible_key_arrives(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < CASES; n++)
        for (int mode = MODE_NONE; mode <= MODE_CSBP; mode++) {
            struct plan_case c = random_case(n, mode);
            struct plan_layout **all = make_layouts(&c);
            for (int kind = 0; kind < c.n_kinds; kind++) {
                struct simulation sim;
                simulate(&sim, &c, all, kind);
                for (int r = 0; r < c.shape.degree; r++)
                    check_kind(&sim, r);
                end_simulation(&sim);
            }
            free_layouts(&c, all);
        }
}

/* ---- Capacity ---- */

static void capacity_bounds_all_documents(void **state)
{
    (void)state;
    for (uint64_t n = 0; n < CASES; n++)
        for (int mode = MODE_NONE; mode <= MODE_CSBP; mode++) {
            struct plan_case c = random_case(n, mode);
            struct plan_case whole = c;
            whole.documents[0] = (struct plan_document){0, c.shape.length};
            whole.n_documents = 1;
            struct plan_layout **all = make_layouts(&c), **most = make_layouts(&whole);
            for (int r = 0; r < c.shape.degree; r++) {
                struct plan_capacity bound, reached = {0};
                must(plan_capacity(&c.shape, r, c.windows, c.n_kinds, &bound));
                assert_int_equal(all[r]->n_rows, bound.rows);
                int64_t loss_rows = 0;
                for (int64_t row = 0; row < all[r]->n_rows; row++) {
                    loss_rows += all[r]->carries_loss[row];
                    reached.loss_rows += most[r]->carries_loss[row];
                }
                assert_true(loss_rows <= bound.loss_rows);
                for (int k = 0; k < c.n_kinds; k++) {
                    assert_true(all[r]->kinds[k].send_rows <= bound.send_rows);
                    assert_true(all[r]->kinds[k].buffer_rows <= bound.buffer_rows);
                    if (most[r]->kinds[k].send_rows > reached.send_rows)
                        reached.send_rows = most[r]->kinds[k].send_rows;
                    if (most[r]->kinds[k].buffer_rows > reached.buffer_rows)
                        reached.buffer_rows = most[r]->kinds[k].buffer_rows;
                }
                /* And no larger than it must be. */
                assert_int_equal(bound.loss_rows, reached.loss_rows);
                assert_int_equal(bound.send_rows, reached.send_rows);
                assert_int_equal(bound.buffer_rows, reached.buffer_rows);
            }
            free_layouts(&c, all);
            free_layouts(&whole, most);
        }
}

/* ---- Traffic ---- */

static int64_t group_wire_rows(enum parallel_mode mode, int degree, int64_t length, int64_t block,
                               int64_t window, int64_t *most)
{
    struct plan_case c = {.shape = {mode, false, degree, 1, length, block},
                          .documents = {{0, length}},
                          .n_documents = 1,
                          .windows = {window},
                          .n_kinds = 1};
    struct plan_layout **all = make_layouts(&c);
    int64_t rows = 0;
    *most = 0;
    for (int r = 0; r < degree; r++) {
        rows += all[r]->kinds[0].wire_rows;
        if (all[r]->kinds[0].wire_rows > *most)
            *most = all[r]->kinds[0].wire_rows;
    }
    free_layouts(&c, all);
    return rows;
}

static void csbp_moves_half_of_cp(void **state)
{
    (void)state;
    int64_t most;
    for (int degree = 2; degree <= 8; degree++)
        for (int64_t blocks = 3; blocks < 40; blocks += 4) {
            int64_t length = blocks * 8;
            int64_t csbp = group_wire_rows(MODE_CSBP, degree, length, 8, 0, &most);
            int64_t cp = group_wire_rows(MODE_CP, degree, length, 8, 0, &most);
            assert_int_equal(csbp, length * (degree - 1));
            assert_int_equal(cp, 2 * csbp);
            assert_int_equal(group_wire_rows(MODE_BP, degree, length, 8, 0, &most), 0);
        }
}

static void windows_move_little(void **state)
{
    (void)state;
    int64_t most, most_cp;
    for (int64_t blocks = 64; blocks <= 136; blocks++) {
        int64_t length = blocks * 32;
        int64_t csbp = group_wire_rows(MODE_CSBP, 4, length, 32, length / 8, &most);
        int64_t cp = group_wire_rows(MODE_CP, 4, length, 32, length / 8, &most_cp);
        if (blocks % 8 == 0) {
            /* Blocks and chunks coincide: two stretches a rank, each with one window before it. */
            assert_true(5 * csbp <= cp && 5 * most <= most_cp);
            assert_true(most <= 2 * (length / 8));
        } else {
            /* Blocks left in the middle of the deal bring up to two more windows a rank. */
            assert_true(4 * csbp <= cp);
        }
        /* A window never moves more than everything. */
        assert_true(group_wire_rows(MODE_CSBP, 4, length, 32, 2 * length, &most) <= 3 * length);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_visible_key_arrives),
        cmocka_unit_test(capacity_bounds_all_documents),
        cmocka_unit_test(csbp_moves_half_of_cp),
        cmocka_unit_test(windows_move_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
