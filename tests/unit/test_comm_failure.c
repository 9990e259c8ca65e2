/* Ranks that die, stall, leave early or meet wrongly; communicators side by side. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/worker/comm/comm.h"
#include "tests/support/ranks.h"

#define ADDRESS "127.0.0.1"
#define PATIENCE_S 60.0
#define MIB ((size_t)1 << 20)

static void sleep_s(double s)
{
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

static void assert_ok(struct err *e)
{
    if (e)
        fail_msg("%s", err_message(e));
}

/* ---- a rank dies ---- */

#define VICTIM 1

static void *die_soon(void *user)
{
    sleep_s(*(const double *)user);
    raise(SIGKILL);
    return NULL;
}

/* Exchanges large messages until it fails; the victim is killed in the middle. */
static struct err *killed_body(int rank, int world, const struct meeting *meeting, void *user)
{
    struct comm *c;
    TRY(comm_create_gloo(meeting, "world", rank, world, ADDRESS, PATIENCE_S, &c));
    pthread_t killer;
    if (rank == VICTIM)
        pthread_create(&killer, NULL, die_soon, user);
    size_t bytes = 24 * MIB;
    char *send = calloc(1, bytes), *recv = calloc((size_t)world, bytes);
    struct err *e = NULL;
    while (!e) {
        comm_all_gather(c, NULL, send, recv, bytes);
        e = comm_failure(c);
    }
    free(send);
    free(recv);
    /* Stays failed, and later operations return at once. */
    comm_all_gather(c, NULL, NULL, NULL, bytes);
    double value = 1;
    struct err *again = comm_sum(c, &value, 1);
    bool same = again && strcmp(err_message(again), err_message(e)) == 0;
    err_free(again);
    again = comm_barrier(c);
    same = same && again && err_kind(again) == err_kind(e);
    err_free(again);
    comm_destroy(c);
    if (same)
        return e;
    err_free(e);
    return err_new(ERR_INTERNAL, "the failure was not kept");
}

static void killed_rank_aborts_the_others(void **state)
{
    (void)state;
    for (int world = 2; world <= 4; world++) {
        double after_s = 0.03 * world;
        struct rank_outcome outcomes[4];
        err_free(ranks_run(world, killed_body, &after_s, PATIENCE_S / 2, outcomes));
        for (int r = 0; r < world; r++) {
            assert_non_null(outcomes[r].error);
            enum err_kind kind = r == VICTIM ? ERR_INTERNAL : ERR_ABORTED;
            if (err_kind(outcomes[r].error) != kind)
                fail_msg("world %d, rank %d: %s", world, r, err_message(outcomes[r].error));
        }
        assert_non_null(strstr(err_message(outcomes[VICTIM].error), "signal 9"));
        assert_non_null(strstr(err_message(outcomes[0].error), "communicator \"world\": rank 0"));
        ranks_free(outcomes, world);
    }
}

/* ---- a rank is silent ---- */

static struct err *silent_body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    struct comm *c;
    double timeout_s = rank == VICTIM ? PATIENCE_S : 0.5;
    TRY(comm_create_gloo(meeting, "world", rank, world, ADDRESS, timeout_s, &c));
    if (rank == VICTIM)
        sleep_s(2);
    double value = 1;
    struct err *e = comm_sum(c, &value, 1);
    comm_destroy(c);
    return e;
}

/* Who is first out of time aborts the rest. */
static void silent_rank_is_a_timeout(void **state)
{
    (void)state;
    struct rank_outcome outcomes[3];
    struct err *first = ranks_run(3, silent_body, NULL, PATIENCE_S, outcomes);
    assert_non_null(first);
    assert_int_equal(err_kind(first), ERR_TIMEOUT);
    err_free(first);
    for (int r = 0; r < 3; r++) {
        assert_non_null(outcomes[r].error);
        enum err_kind kind = err_kind(outcomes[r].error);
        assert_true(kind == ERR_ABORTED || (kind == ERR_TIMEOUT && r != VICTIM));
    }
    ranks_free(outcomes, 3);
}

/* ---- ranks leave in good order, at different times ---- */

/* Everybody sends to the next only, so the last exchange is over for some ranks while it goes on
 * for others. */
static struct err *leaving_body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    for (int round = 0; round < 6; round++) {
        char name[16];
        snprintf(name, sizeof name, "round-%d", round);
        struct comm *c;
        TRY(comm_create_gloo(meeting, name, rank, world, ADDRESS, PATIENCE_S, &c));
        if (rank == round % world)
            sleep_s(0.05);
        size_t send_bytes[8] = {0}, recv_bytes[8] = {0};
        send_bytes[(rank + 1) % world] = 100000;
        recv_bytes[(rank + world - 1) % world] = 100000;
        char *send = malloc(100000), *recv = malloc(100000);
        memset(send, 'a' + rank, 100000);
        comm_all_to_all(c, NULL, send, send_bytes, recv, recv_bytes);
        struct err *e = comm_failure(c);
        bool right = recv[0] == 'a' + (rank + world - 1) % world && recv[99999] == recv[0];
        free(send);
        free(recv);
        comm_destroy(c);
        TRY(e);
        if (!right)
            return err_new(ERR_INTERNAL, "round %d: wrong bytes", round);
    }
    return NULL;
}

static void leaving_early_disturbs_nobody(void **state)
{
    (void)state;
    assert_ok(ranks_run(4, leaving_body, NULL, PATIENCE_S, NULL));
}

/* ---- communicators side by side ---- */

/* A 2 x 2 grid: row communicators {0, 1} and {2, 3}, column communicators {0, 2} and {1, 3}. */
static struct err *grid_body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    int row = rank / 2, column = rank % 2;
    int row_members[2] = {2 * row, 2 * row + 1}, column_members[2] = {column, column + 2};
    struct meeting_group rows = {meeting, world, row_members, 2};
    struct meeting_group columns = {meeting, world, column_members, 2};
    struct meeting row_meeting = meeting_of_group(&rows);
    struct meeting column_meeting = meeting_of_group(&columns);
    struct comm *all = NULL, *in_row = NULL, *in_column = NULL;
    struct err *e = comm_create_gloo(meeting, "world", rank, world, ADDRESS, PATIENCE_S, &all);
    if (!e)
        e = comm_create_gloo(&row_meeting, "row", column, 2, ADDRESS, PATIENCE_S, &in_row);
    if (!e)
        e = comm_create_gloo(&column_meeting, "column", row, 2, ADDRESS, PATIENCE_S, &in_column);
    for (int round = 0; !e && round < 50; round++) {
        double in_all = rank, across = rank, down = rank;
        e = comm_sum(in_row, &across, 1);
        if (!e)
            e = comm_sum(all, &in_all, 1);
        if (!e)
            e = comm_sum(in_column, &down, 1);
        if (!e && (in_all != 6 || across != 4 * row + 1 || down != 2 * column + 2))
            e = err_new(ERR_INTERNAL, "sums %g, %g, %g", in_all, across, down);
    }
    comm_destroy(all);
    comm_destroy(in_row);
    comm_destroy(in_column);
    return e;
}

static void groups_of_a_grid_are_apart(void **state)
{
    (void)state;
    assert_ok(ranks_run(4, grid_body, NULL, PATIENCE_S, NULL));
}

static struct err *wrong_group_body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    int members[2] = {0, 1};
    struct meeting_group group = {meeting, world, members, 2};
    struct meeting of_group = meeting_of_group(&group);
    struct comm *c;
    return comm_create_gloo(&of_group, "group", rank, 3, ADDRESS, PATIENCE_S, &c);
}

static void group_of_another_size_is_refused(void **state)
{
    (void)state;
    struct err *e = ranks_run(2, wrong_group_body, NULL, PATIENCE_S, NULL);
    assert_non_null(e);
    assert_int_equal(err_kind(e), ERR_INVALID);
    err_free(e);
}

/* ---- meetings that go wrong ---- */

static struct err *absent_body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    if (rank == VICTIM)
        return NULL;
    struct comm *c;
    return comm_create_gloo(meeting, "world", rank, world, ADDRESS, 0.5, &c);
}

static void absent_rank_is_a_timeout(void **state)
{
    (void)state;
    struct rank_outcome outcomes[3];
    err_free(ranks_run(3, absent_body, NULL, PATIENCE_S, outcomes));
    assert_non_null(outcomes[0].error);
    assert_int_equal(err_kind(outcomes[0].error), ERR_TIMEOUT);
    ranks_free(outcomes, 3);
}

/* Lets the post through, and fails afterwards. */
static struct err *exchange_and_go(void *user, const char *key, const void *data, size_t bytes,
                                   int world, double timeout_s, struct meeting_bytes *all)
{
    const struct meeting *meeting = user;
    TRY(meeting->exchange(meeting->user, key, data, bytes, world, timeout_s, all));
    meeting_free(all, world);
    return err_new(ERR_IO, "gone");
}

/* The victim posts its addresses and is gone before the others connect. */
static struct err *gone_body(int rank, int world, const struct meeting *meeting, void *user)
{
    (void)user;
    struct meeting until_met = {.exchange = exchange_and_go, .user = (void *)meeting};
    struct comm *c;
    TRY(comm_create_gloo(rank == VICTIM ? &until_met : meeting, "world", rank, world, ADDRESS, 1,
                         &c));
    /* The kernel may have let us connect just before; then the first exchange tells. */
    double value = 1;
    struct err *e = comm_sum(c, &value, 1);
    comm_destroy(c);
    return e;
}

static void addresses_that_lead_nowhere_are_an_error(void **state)
{
    (void)state;
    struct rank_outcome outcomes[3];
    err_free(ranks_run(3, gone_body, NULL, PATIENCE_S, outcomes));
    for (int r = 0; r < 3; r++) {
        assert_non_null(outcomes[r].error);
        enum err_kind kind = err_kind(outcomes[r].error);
        assert_true(r == VICTIM ? kind == ERR_IO : kind == ERR_ABORTED || kind == ERR_TIMEOUT);
    }
    ranks_free(outcomes, 3);
}

static struct err *no_meeting(void *user, const char *key, const void *data, size_t bytes,
                              int world, double timeout_s, struct meeting_bytes *all)
{
    (void)key, (void)data, (void)bytes, (void)timeout_s;
    if (!user)
        return err_new(ERR_IO, "nobody is here");
    for (int r = 0; r < world; r++) {
        all[r].data = calloc(1, 5);
        all[r].bytes = 5;
    }
    return NULL;
}

static void wrong_meetings_and_addresses_are_errors(void **state)
{
    (void)state;
    struct comm *c;
    struct meeting none = {.exchange = no_meeting}, odd = {.exchange = no_meeting, .user = &odd};
    struct err *e = comm_create_gloo(&none, "world", 0, 2, ADDRESS, 1, &c);
    assert_int_equal(err_kind(e), ERR_IO);
    err_free(e);
    e = comm_create_gloo(&odd, "world", 0, 2, ADDRESS, 1, &c);
    assert_int_equal(err_kind(e), ERR_INVALID);
    assert_non_null(strstr(err_message(e), "posted 5 bytes at meeting \"gloo/world\""));
    err_free(e);
    e = comm_create_gloo(&none, "world", 0, 2, "192.0.2.1", 1, &c);
    assert_int_equal(err_kind(e), ERR_INVALID);
    assert_non_null(strstr(err_message(e), "192.0.2.1"));
    err_free(e);
    e = comm_create_gloo(&none, "world", 0, 2, "no such host", 1, &c);
    assert_int_equal(err_kind(e), ERR_INVALID);
    assert_non_null(strstr(err_message(e), "\"no such host\": Name or service not known"));
    err_free(e);
    e = comm_create_gloo(&none, "world", 2, 2, ADDRESS, 1, &c);
    assert_int_equal(err_kind(e), ERR_INVALID);
    err_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_rank_aborts_the_others),
        cmocka_unit_test(silent_rank_is_a_timeout),
        cmocka_unit_test(leaving_early_disturbs_nobody),
        cmocka_unit_test(groups_of_a_grid_are_apart),
        cmocka_unit_test(group_of_another_size_is_refused),
        cmocka_unit_test(absent_rank_is_a_timeout),
        cmocka_unit_test(addresses_that_lead_nowhere_are_an_error),
        cmocka_unit_test(wrong_meetings_and_addresses_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
