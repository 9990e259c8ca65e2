/* What the communicators count is what crosses the wire: the kernel's count of a loopback interface
 * that nobody else uses, against the counters and against what each operation has to move. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/worker/comm/comm.h"
#include "tests/support/netns.h"
#include "tests/support/ranks.h"

#define WORLD 3
#define TIMEOUT_S 60.0
#define UNIT ((size_t)3 << 20)
#define HEADERS 0.03 /* of TCP and IP, acknowledgements, and what Gloo says beside the payload */

enum operation { ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BARRIERS, OPERATIONS };

static const char *const names[] = {"all_gather", "reduce_scatter", "all_to_all", "barriers"};

/* Only the next two ranks get something in an all-to-all, one more than the other. */
static size_t part(int from, int to)
{
    return (size_t)((to - from + WORLD) % WORLD) * UNIT;
}

/* Payload that must cross between ranks, all of them together. */
static int64_t must_move(enum operation operation)
{
    if (operation == BARRIERS)
        return 0;
    if (operation != ALL_TO_ALL)
        return (int64_t)(WORLD * (WORLD - 1) * UNIT);
    int64_t sum = 0;
    for (int from = 0; from < WORLD; from++)
        for (int to = 0; to < WORLD; to++)
            sum += from == to ? 0 : (int64_t)part(from, to);
    return sum;
}

static void operate(struct comm *c, enum operation operation, void *a, void *b, void *scratch)
{
    int rank = comm_rank(c);
    size_t to[WORLD], from[WORLD];
    for (int r = 0; r < WORLD; r++) {
        to[r] = part(rank, r);
        from[r] = part(r, rank);
    }
    if (operation == ALL_GATHER)
        comm_all_gather(c, NULL, a, b, UNIT);
    if (operation == REDUCE_SCATTER)
        comm_reduce_scatter(c, NULL, a, b, UNIT / sizeof(float), scratch);
    if (operation == ALL_TO_ALL)
        comm_all_to_all(c, NULL, a, to, b, from);
    for (int i = 0; operation == BARRIERS && i < 10; i++)
        err_free(comm_barrier(c));
}

struct traffic {
    int64_t wire_bytes, sent_bytes, received_bytes;
};

/* Everybody stands still while rank 0 reads the interface. */
static struct err *read_wire(struct comm *c, int64_t *bytes)
{
    TRY(comm_barrier(c));
    if (comm_rank(c) == 0)
        TRY(netns_received_bytes("lo", bytes));
    return comm_barrier(c);
}

static struct err *measure(struct comm *c, enum operation operation, struct traffic *out)
{
    int64_t wire[2] = {0};
    struct comm_counters before = comm_counters(c);
    void *a = calloc(WORLD, UNIT), *b = calloc(WORLD, UNIT), *scratch = calloc(WORLD, UNIT);
    struct err *e = read_wire(c, &wire[0]);
    if (!e)
        operate(c, operation, a, b, scratch);
    if (!e)
        e = read_wire(c, &wire[1]);
    free(a);
    free(b);
    free(scratch);
    struct comm_counters after = comm_counters(c);
    *out = (struct traffic){wire[1] - wire[0], after.sent_bytes - before.sent_bytes,
                            after.received_bytes - before.received_bytes};
    return e;
}

static struct err *body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    struct comm *c;
    TRY(comm_create_gloo(meeting, "world", rank, world, "127.0.0.1", TIMEOUT_S, &c));
    struct traffic traffic[OPERATIONS];
    struct err *e = NULL;
    for (int o = 0; !e && o < OPERATIONS; o++)
        e = measure(c, o, &traffic[o]);
    comm_destroy(c);
    if (!e)
        ranks_result(traffic, sizeof traffic);
    return e;
}

static void counters_are_what_crosses_the_wire(void **state)
{
    (void)state;
    struct rank_outcome outcomes[WORLD];
    struct err *e = ranks_run(WORLD, body, NULL, TIMEOUT_S, outcomes);
    if (e)
        fail_msg("%s", err_message(e));
    for (int o = 0; o < OPERATIONS; o++) {
        int64_t sent = 0, received = 0, must = must_move(o);
        for (int r = 0; r < WORLD; r++) {
            const struct traffic *traffic = outcomes[r].result;
            assert_int_equal(outcomes[r].result_bytes, sizeof(struct traffic[OPERATIONS]));
            sent += traffic[o].sent_bytes;
            received += traffic[o].received_bytes;
        }
        int64_t wire = ((const struct traffic *)outcomes[0].result)[o].wire_bytes;
        print_message("%-14s payload %9lld  wire %9lld\n", names[o], (long long)must,
                      (long long)wire);
        assert_int_equal(sent, must);
        assert_int_equal(received, must);
        assert_true(wire >= must);
        assert_true((double)wire <= (1 + HEADERS) * (double)must + 100000);
    }
    ranks_free(outcomes, WORLD);
}

/* Where a network namespace cannot be had the whole program is skipped, and says so to Meson. */
#define SKIPPED 77

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counters_are_what_crosses_the_wire),
    };
    struct err *e = netns_enter();
    if (e) {
        print_message("skipped: %s\n", err_message(e));
        err_free(e);
        return SKIPPED;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
