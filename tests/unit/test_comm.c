#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/philox.h"
#include "daemon/worker/comm/comm.h"
#include "tests/support/ranks.h"

#define ADDRESS "127.0.0.1"
#define PATIENCE_S 60.0
#define MIB ((size_t)1 << 20)

/* In a rank there is no cmocka: what fails is returned. */
#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return err_new(ERR_INTERNAL, "line %d: not %s", __LINE__, #condition);                 \
    } while (0)

/* A size that all ranks agree on, up to `most`, often 0. */
static size_t size_of(int round, int from, int to, size_t most)
{
    uint64_t bits = philox_bits(1, PHILOX_TIME, (uint64_t)round, 0, (uint64_t)(from * 16 + to));
    return bits % 4 == 0 ? 0 : (size_t)(bits >> 8) % (most + 1);
}

/* The bytes that rank `from` means for rank `to`. */
static void fill(void *data, size_t bytes, int round, int from, int to)
{
    uint64_t x = (uint64_t)(round * 4096 + from * 64 + to) * 0x9e3779b97f4a7c15u + 1;
    for (size_t i = 0; i < bytes; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        ((unsigned char *)data)[i] = (unsigned char)(x >> 56);
    }
}

static float value_of(int from, int to, size_t i)
{
    return philox_uniform(2, PHILOX_TIME, (uint64_t)i, (uint32_t)from, (uint64_t)to) - 0.5f;
}

static struct err *check(const void *got, size_t bytes, int round, int from, int to)
{
    unsigned char *want = malloc(bytes + 1);
    fill(want, bytes, round, from, to);
    int differs = memcmp(got, want, bytes);
    free(want);
    if (differs)
        return err_new(ERR_INTERNAL, "round %d: %zu bytes of rank %d for rank %d are wrong", round,
                       bytes, from, to);
    return NULL;
}

static struct err *create(const struct meeting *meeting, int rank, int world, struct comm **out)
{
    return comm_create_gloo(meeting, "world", rank, world, ADDRESS, PATIENCE_S, out);
}

static void run(int world, ranks_body body)
{
    struct err *e = ranks_run(world, body, NULL, 2 * PATIENCE_S, NULL);
    if (e)
        fail_msg("world %d: %s", world, err_message(e));
}

static void run_worlds(ranks_body body)
{
    for (int world = 1; world <= 4; world++)
        run(world, body);
}

/* ---- each operation ---- */

static struct err *all_gather_round(struct comm *c, int round, size_t bytes, bool in_place)
{
    int rank = comm_rank(c), world = comm_world(c);
    char *recv = malloc((size_t)world * bytes + 1), *apart = malloc(bytes + 1);
    char *send = in_place ? recv + (size_t)rank * bytes : apart;
    fill(send, bytes, round, rank, 0);
    comm_all_gather(c, NULL, send, recv, bytes);
    struct err *e = comm_failure(c);
    for (int r = 0; !e && r < world; r++)
        e = check(recv + (size_t)r * bytes, bytes, round, r, 0);
    free(recv);
    free(apart);
    return e;
}

static struct err *all_gather_body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    static const size_t sizes[] = {0, 1, 7, 4096, 100003, 3 * MIB + 5};
    struct comm *c;
    TRY(create(meeting, rank, world, &c));
    EXPECT(comm_rank(c) == rank && comm_world(c) == world);
    int64_t moved = 0;
    struct err *e = NULL;
    for (int i = 0; !e && i < 12; i++) {
        e = all_gather_round(c, i, sizes[i / 2], i % 2);
        moved += (int64_t)sizes[i / 2] * (world - 1);
    }
    struct comm_counters counters = comm_counters(c);
    comm_destroy(c);
    TRY(e);
    EXPECT(counters.sent_bytes == moved && counters.received_bytes == moved);
    return NULL;
}

static void all_gather_gives_everybodys_bytes(void **state)
{
    (void)state;
    run_worlds(all_gather_body);
}

/* Sums in rank order, bit by bit, the second time as the first. */
static struct err *reduce_scatter_round(struct comm *c, size_t count, bool in_place)
{
    int rank = comm_rank(c), world = comm_world(c);
    size_t all = (size_t)world * count + 1;
    float *send = malloc(all * sizeof *send), *scratch = malloc(all * sizeof *send);
    float *apart = malloc((count + 1) * sizeof *send);
    float *recv = in_place ? send + (size_t)rank * count : apart;
    for (int r = 0; r < world; r++)
        for (size_t i = 0; i < count; i++)
            send[(size_t)r * count + i] = value_of(rank, r, i);
    comm_reduce_scatter(c, NULL, send, recv, count, scratch);
    struct err *e = comm_failure(c);
    for (size_t i = 0; !e && i < count; i++) {
        float sum = value_of(0, rank, i);
        for (int r = 1; r < world; r++)
            sum += value_of(r, rank, i);
        if (memcmp(&sum, &recv[i], sizeof sum) != 0)
            e = err_new(ERR_INTERNAL, "count %zu: element %zu is %.9g, not %.9g", count, i,
                        (double)recv[i], (double)sum);
    }
    free(send);
    free(scratch);
    free(apart);
    return e;
}

static struct err *reduce_scatter_body(int rank, int world, const struct meeting *meeting,
                                       void *user)
{
    (void)user;
    static const size_t counts[] = {0, 1, 1000, 2048, 50001};
    struct comm *c;
    TRY(create(meeting, rank, world, &c));
    int64_t moved = 0;
    struct err *e = NULL;
    for (int i = 0; !e && i < 10; i++) {
        e = reduce_scatter_round(c, counts[i / 2], i % 2);
        moved += (int64_t)(counts[i / 2] * sizeof(float)) * (world - 1);
    }
    struct comm_counters counters = comm_counters(c);
    comm_destroy(c);
    TRY(e);
    EXPECT(counters.sent_bytes == moved && counters.received_bytes == moved);
    return NULL;
}

static void reduce_scatter_sums_in_rank_order(void **state)
{
    (void)state;
    run_worlds(reduce_scatter_body);
}

static struct err *all_to_all_round(struct comm *c, int round, size_t most, int64_t *sent,
                                    int64_t *received)
{
    int rank = comm_rank(c), world = comm_world(c);
    size_t send_bytes[16], recv_bytes[16], send_all = 0, recv_all = 0;
    for (int r = 0; r < world; r++) {
        send_all += send_bytes[r] = size_of(round, rank, r, most);
        recv_all += recv_bytes[r] = size_of(round, r, rank, most);
    }
    *sent += (int64_t)(send_all - send_bytes[rank]);
    *received += (int64_t)(recv_all - recv_bytes[rank]);
    char *send = malloc(send_all + 1), *recv = malloc(recv_all + 1);
    size_t at = 0;
    for (int r = 0; r < world; r++) {
        fill(send + at, send_bytes[r], round, rank, r);
        at += send_bytes[r];
    }
    comm_all_to_all(c, NULL, send, send_bytes, recv, recv_bytes);
    struct err *e = comm_failure(c);
    at = 0;
    for (int r = 0; !e && r < world; r++) {
        e = check(recv + at, recv_bytes[r], round, r, rank);
        at += recv_bytes[r];
    }
    free(send);
    free(recv);
    return e;
}

static struct err *all_to_all_body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    static const size_t most[] = {3, 1000, 300000};
    struct comm *c;
    TRY(create(meeting, rank, world, &c));
    int64_t sent = 0, received = 0;
    struct err *e = NULL;
    for (int round = 0; !e && round < 30; round++)
        e = all_to_all_round(c, round, most[round % 3], &sent, &received);
    struct comm_counters counters = comm_counters(c);
    comm_destroy(c);
    TRY(e);
    EXPECT(counters.sent_bytes == sent && counters.received_bytes == received);
    return NULL;
}

static void all_to_all_moves_unequal_parts(void **state)
{
    (void)state;
    run_worlds(all_to_all_body);
}

static struct err *sum_body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    enum { COUNT = 37 };
    struct comm *c;
    TRY(create(meeting, rank, world, &c));
    struct err *e = NULL;
    for (int round = 0; !e && round < 20; round++) {
        double values[COUNT], want[COUNT];
        for (int i = 0; i < COUNT; i++) {
            values[i] = (double)value_of(rank, round, (size_t)i) * (i % 2 ? 1e-9 : 1e9);
            want[i] = 0;
            for (int r = 0; r < world; r++) {
                double value = (double)value_of(r, round, (size_t)i) * (i % 2 ? 1e-9 : 1e9);
                want[i] = r ? want[i] + value : value;
            }
        }
        e = comm_sum(c, values, COUNT);
        if (!e && memcmp(values, want, sizeof want) != 0)
            e = err_new(ERR_INTERNAL, "round %d: the sums are wrong", round);
    }
    if (!e)
        e = comm_sum(c, NULL, 0);
    struct comm_counters counters = comm_counters(c);
    comm_destroy(c);
    TRY(e);
    EXPECT(counters.sent_bytes == 20 * COUNT * 8 * (world - 1));
    return NULL;
}

static void sum_is_the_same_on_all_ranks(void **state)
{
    (void)state;
    run_worlds(sum_body);
}

static struct err *barrier_body(int rank, int world, const struct meeting *meeting, void *user)
{
    _Atomic int *arrived = user;
    struct comm *c;
    TRY(create(meeting, rank, world, &c));
    struct err *e = NULL;
    for (int round = 1; !e && round <= 50; round++) {
        atomic_fetch_add(arrived, 1);
        e = comm_barrier(c);
        if (!e && atomic_load(arrived) < round * world)
            e = err_new(ERR_INTERNAL, "round %d: left before all had come", round);
    }
    struct comm_counters counters = comm_counters(c);
    comm_destroy(c);
    TRY(e);
    EXPECT(counters.sent_bytes == 0 && counters.received_bytes == 0);
    return NULL;
}

static void barrier_waits_for_all(void **state)
{
    (void)state;
    for (int world = 1; world <= 4; world++) {
        _Atomic int *arrived =
            mmap(NULL, sizeof *arrived, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        assert_true(arrived != MAP_FAILED);
        struct err *e = ranks_run(world, barrier_body, arrived, PATIENCE_S, NULL);
        if (e)
            fail_msg("world %d: %s", world, err_message(e));
        munmap(arrived, sizeof *arrived);
    }
}

static void self_copies_and_counts_nothing(void **state)
{
    (void)state;
    struct comm *c;
    assert_null(comm_create_self(&c));
    assert_int_equal(comm_rank(c), 0);
    assert_int_equal(comm_world(c), 1);
    char got[8] = "", want[8] = "7 bytes";
    size_t bytes = sizeof want;
    comm_all_gather(c, NULL, want, got, bytes);
    assert_string_equal(got, want);
    memset(got, 0, sizeof got);
    comm_all_to_all(c, NULL, want, &bytes, got, &bytes);
    assert_string_equal(got, want);
    float in[3] = {1, 2, 3}, out[3], scratch[3];
    comm_reduce_scatter(c, NULL, in, out, 3, scratch);
    assert_memory_equal(in, out, sizeof in);
    double value = 5;
    assert_null(comm_sum(c, &value, 1));
    assert_true(value == 5);
    assert_null(comm_barrier(c));
    assert_null(comm_failure(c));
    assert_int_equal(comm_counters(c).sent_bytes, 0);
    assert_int_equal(comm_counters(c).received_bytes, 0);
    comm_destroy(c);
}

/* ---- large messages ---- */

static struct err *large_body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    struct comm *c;
    TRY(create(meeting, rank, world, &c));
    struct err *e = all_gather_round(c, 1, 40 * MIB + 3, false);
    comm_destroy(c);
    return e;
}

static void large_messages_both_ways_do_not_deadlock(void **state)
{
    (void)state;
    run(3, large_body);
}

/* `pages` maps of one MiB of memory, one behind the other: a large buffer that costs nothing. A
 * pattern of that period must arrive in phase. */
static char *map_folded(size_t pages)
{
    int fd = memfd_create("folded", MFD_CLOEXEC);
    char *base = mmap(NULL, pages * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fd < 0 || base == MAP_FAILED || ftruncate(fd, (off_t)MIB) < 0)
        return NULL;
    for (size_t i = 0; i < pages; i++)
        if (mmap(base + i * MIB, MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) ==
            MAP_FAILED)
            return NULL;
    close(fd);
    return base;
}

static struct err *beyond_2_gib_body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    const size_t bytes = 2050 * MIB + 17;
    char *send = map_folded(2051), *recv = map_folded(2051);
    EXPECT(send && recv);
    struct comm *c;
    TRY(create(meeting, rank, world, &c));
    fill(send, MIB, 0, rank, 1 - rank);
    size_t parts[2] = {rank == 1 ? bytes : 0, rank == 0 ? bytes : 0};
    comm_all_to_all(c, NULL, send, parts, recv, parts);
    struct err *e = comm_failure(c);
    struct comm_counters counters = comm_counters(c);
    comm_destroy(c);
    TRY(e);
    EXPECT(counters.sent_bytes == (int64_t)bytes && counters.received_bytes == (int64_t)bytes);
    return check(recv, MIB, 0, 1 - rank, rank);
}

static void messages_beyond_2_gib_arrive(void **state)
{
    (void)state;
    run(2, beyond_2_gib_body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_gather_gives_everybodys_bytes),
        cmocka_unit_test(reduce_scatter_sums_in_rank_order),
        cmocka_unit_test(all_to_all_moves_unequal_parts),
        cmocka_unit_test(sum_is_the_same_on_all_ranks),
        cmocka_unit_test(barrier_waits_for_all),
        cmocka_unit_test(self_copies_and_counts_nothing),
        cmocka_unit_test(large_messages_both_ways_do_not_deadlock),
        cmocka_unit_test(messages_beyond_2_gib_arrive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
