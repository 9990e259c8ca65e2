/* Ranks and attempts in each other's way: killed at random, and two attempts at the same step. */
#include "tests/unit/checkpoint_fixture.h"

#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#define WORLD 3
#define ROUNDS 40

static int set_up(void **state)
{
    char *directory = calloc(1, 64);
    if (!directory)
        return -1;
    *state = directory;
    fixture_directory(directory);
    return 0;
}

static int tear_down(void **state)
{
    fixture_remove(*state);
    free(*state);
    return 0;
}

static void expect_nothing_but(const char *directory, size_t checkpoints)
{
    size_t names = 0, count;
    OK(fixture_check_all(directory, &count));
    assert_int_equal(count, checkpoints);
    DIR *dir = opendir(directory);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        names += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    assert_int_equal(names, checkpoints);
}

/* 0 to 1, by round and rank. */
static double at_random(int round, int rank)
{
    return (double)(philox_bits(1, PHILOX_ORDER, (uint64_t)round, 0, (uint64_t)rank) % 1000) / 1e3;
}

static void sleep_s(double seconds)
{
    const struct timespec t = {.tv_nsec = (long)(seconds * 1e9)};
    nanosleep(&t, NULL);
}

/* A rank as a process. Exits with 0: done; 1: failed with a reason; 2: not as promised. */
static pid_t start_rank(const char *directory, int64_t step, int rank)
{
    struct fixture_rank ranks[WORLD];
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    fixture_ranks(ranks, directory, 1, WORLD, step);
    ranks[rank].patience_s = 0.05;
    fixture_run(&ranks[rank], 1);
    bool done = ranks[rank].status.phase == CHECKPOINT_DONE;
    struct err *e = done ? fixture_check(strndupa(ranks[rank].status.manifest,
                                                  strlen(ranks[rank].status.manifest) -
                                                      strlen("/" CHECKPOINT_MANIFEST)))
                         : NULL;
    _exit(ranks[rank].error || e ? 2 : done ? 0 : 1);
}

static void test_killed_at_random(void **state)
{
    int64_t last = 0; /* step that is known to be whole */
    for (int round = 1; round <= ROUNDS; round++) {
        pid_t pids[WORLD];
        int victim = round % (WORLD + 1); /* or all of them */
        bool any_done = false;
        for (int r = 0; r < WORLD; r++)
            pids[r] = start_rank(*state, round, r);
        sleep_s(0.004 * at_random(round, 0));
        for (int r = 0; r < WORLD; r++)
            if (victim == r || victim == WORLD)
                kill(pids[r], SIGKILL);
        for (int r = 0; r < WORLD; r++) {
            int status;
            assert_int_equal(waitpid(pids[r], &status, 0), pids[r]);
            assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) < 2);
            any_done = any_done || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
        }
        size_t count;
        char *newest;
        OK(fixture_check_all(*state, &count));
        OK(checkpoint_newest(*state, &newest));
        bool there = newest && strtoll(strrchr(newest, '-') + 1, NULL, 10) == round;
        assert_true(there || !any_done); /* whoever says done is right */
        if (there)
            last = round;
        else
            assert_true(last == 0 ? !newest : newest != NULL);
        free(newest);
    }
    size_t count;
    OK(fixture_check_all(*state, &count));
    OK(checkpoint_clean(*state, 1));
    expect_nothing_but(*state, count);
}

/* Attempt 1 still writes while attempt 2, of another world, writes the same step. */
static void test_two_attempts_at_one_step(void **state)
{
    int won[3] = {0};
    for (int round = 1; round <= ROUNDS; round++) {
        struct fixture_rank ranks[2 + WORLD];
        struct checkpoint *c;
        char path[256];
        bool old_first = round % 2; /* a head start for one of them */
        fixture_ranks(old_first ? ranks : ranks + WORLD, *state, 1, 2, round);
        fixture_ranks(old_first ? ranks + 2 : ranks, *state, 2, WORLD, round);
        for (int i = 0; i < 2 + WORLD; i++)
            if (ranks[i].attempt == 1)
                ranks[i].patience_s = 0.05;
        fixture_run(ranks, 2 + WORLD);
        for (int i = 0; i < 2 + WORLD; i++) {
            struct err *e = ranks[i].error ? ranks[i].error : ranks[i].status.error;
            /* The newer attempt may have swept the older one's part away. */
            if (e && (ranks[i].attempt == 2 ||
                      (err_kind(e) != ERR_ABORTED && err_kind(e) != ERR_TIMEOUT)))
                fail_msg("round %d, attempt %lld, rank %d: %s", round, (long long)ranks[i].attempt,
                         ranks[i].rank, err_message(e));
        }
        fixture_forget(ranks, 2 + WORLD);
        snprintf(path, sizeof path, "%s/step-%09d", (const char *)*state, round);
        OK(fixture_check(path));
        OK(checkpoint_open(path, false, &c));
        won[checkpoint_manifest(c)->facts.attempt]++;
        checkpoint_close(c);
    }
    assert_int_equal(won[1] + won[2], ROUNDS);
    print_message("attempt 1 won %d times, attempt 2 %d times\n", won[1], won[2]);
    OK(checkpoint_clean(*state, 2));
    expect_nothing_but(*state, ROUNDS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_killed_at_random, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_two_attempts_at_one_step, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
