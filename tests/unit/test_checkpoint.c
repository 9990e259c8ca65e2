/* Checkpoints as ranks write and load them when nothing breaks: from every world to every other,
 * beside each other, one after another, on top of each other. */
#include "tests/unit/checkpoint_fixture.h"

#include <dirent.h>

struct place {
    char directory[64];
};

static int set_up(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    if (!p)
        return -1;
    fixture_directory(p->directory);
    *state = p;
    return 0;
}

static int tear_down(void **state)
{
    struct place *p = *state;
    fixture_remove(p->directory);
    free(p);
    return 0;
}

static const char *directory_of(void **state)
{
    return ((struct place *)*state)->directory;
}

/* directory/name, good until the next call. */
static const char *within(const char *directory, const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    return path;
}

/* Names in a directory that begin so. */
static int count_names(const char *directory, const char *prefix)
{
    int n = 0;
    DIR *dir = opendir(directory);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        n += strncmp(entry->d_name, prefix, strlen(prefix)) == 0 &&
             strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return n;
}

static void put_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* ---- One checkpoint ---- */

static void test_every_world_loads_every_other(void **state)
{
    for (int world = 1; world <= 4; world++) {
        fixture_write(directory_of(state), 1, world, world);
        char name[CHECKPOINT_NAME_BYTES];
        checkpoint_name(world, name);
        OK(fixture_check(within(directory_of(state), name)));
        /* Shards and manifest, nothing else. */
        assert_int_equal(count_names(within(directory_of(state), name), ""), world + 1);
    }
    assert_int_equal(count_names(directory_of(state), ""), 4);
}

/* More ranks than a parameter has elements: one rank holds gaps alone. */
static void test_a_rank_may_hold_nothing(void **state)
{
    fixture_write(directory_of(state), 1, FIXTURE_RANKS, 1);
    OK(fixture_check(within(directory_of(state), "step-000000001")));
}

static void test_the_manifest_says_what_was_told(void **state)
{
    struct checkpoint *c;
    fixture_write(directory_of(state), 3, 2, 12);
    OK(checkpoint_open(within(directory_of(state), "step-000000012"), true, &c));
    const struct checkpoint_manifest *m = checkpoint_manifest(c);
    assert_int_equal(m->facts.attempt, 3);
    assert_int_equal(m->facts.step, 12);
    assert_int_equal(m->facts.world, 2);
    assert_int_equal(m->facts.degree, 2);
    assert_int_equal(m->facts.data, 1);
    assert_string_equal(m->facts.mode, "csbp");
    assert_string_equal(
        cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(m->facts.spec, "name")), "a \"toy\"");
    assert_true(m->created_s > 1.7e9);
    assert_int_equal(m->n_parameters, 4);
    assert_string_equal(m->shards[1].file, "shard-00001-of-00002.safetensors");
    assert_int_equal(checkpoint_manifest_find(m, "q.weight")->shape[1], 6);
    assert_null(checkpoint_manifest_find(m, "r.weight"));
    checkpoint_close(c);
}

static void test_another_model_is_refused_by_name(void **state)
{
    struct checkpoint *c;
    float space[FIXTURE_ELEMENTS];
    struct parameter items[8];
    fixture_write(directory_of(state), 1, 2, 1);
    OK(checkpoint_open(within(directory_of(state), "step-000000001"), false, &c));
    struct parameters wanted = fixture_parameters;
    wanted.items = items;
#define READ() checkpoint_read(c, &wanted, 0, 10, space, space, space)
    memcpy(items, fixture_items, sizeof fixture_items);
    items[2].shape[0] = 6, items[2].shape[1] = 4;
    FAILS(READ(), ERR_INVALID, "q.weight has shape [4, 6], but the model asks for [6, 4]");
    items[2].dims = 1, items[2].shape[0] = 24;
    FAILS(READ(), ERR_INVALID, "q.weight has shape [4, 6], but the model asks for [24]");
    memcpy(items, fixture_items, sizeof fixture_items);
    strcpy(items[1].name, "other.weight");
    FAILS(READ(), ERR_INVALID, "has no other.weight");
    memcpy(items, fixture_items, sizeof fixture_items);
    wanted.n = 3;
    FAILS(READ(), ERR_INVALID, "has k.weight, of which the model knows nothing");
#undef READ
    checkpoint_close(c);
}

/* ---- Beside training ---- */

static void test_one_at_a_time(void **state)
{
    struct fixture_rank ranks[2];
    struct checkpoint_status status;
    fixture_ranks(ranks, directory_of(state), 1, 2, 5);
    for (int r = 0; r < 2; r++) {
        OK(fixture_create(&ranks[r]));
        assert_int_equal(checkpoint_writer_memory_bytes(ranks[r].writer),
                         3 * fixture_count(2) * (int64_t)sizeof(float));
        checkpoint_poll(ranks[r].writer, &status);
        assert_int_equal(status.phase, CHECKPOINT_IDLE);
    }
    OK(fixture_begin(&ranks[0]));
    checkpoint_wait(ranks[0].writer, 0.05, &status); /* it needs rank 1 */
    assert_int_equal(status.phase, CHECKPOINT_WRITING);
    assert_int_equal(status.step, 5);
    assert_null(checkpoint_snapshot(ranks[0].writer));
    FAILS(checkpoint_begin(ranks[0].writer, 6, 6, 24), ERR_CONFLICT, "step 5 is still being");
    assert_int_equal(count_names(directory_of(state), "step-"), 0);
    OK(fixture_begin(&ranks[1]));
    for (int r = 0; r < 2; r++) {
        checkpoint_wait(ranks[r].writer, FIXTURE_WAIT_S, &status);
        assert_int_equal(status.phase, CHECKPOINT_DONE);
        free(status.manifest);
        checkpoint_poll(ranks[r].writer, &status); /* told once */
        assert_int_equal(status.phase, CHECKPOINT_IDLE);
    }
    for (int64_t step = 6; step < 9; step++) { /* and so on */
        for (int r = 0; r < 2; r++) {
            ranks[r].step = step;
            OK(fixture_begin(&ranks[r]));
        }
        for (int r = 0; r < 2; r++) {
            checkpoint_wait(ranks[r].writer, FIXTURE_WAIT_S, &status);
            assert_int_equal(status.phase, CHECKPOINT_DONE);
            free(status.manifest);
        }
    }
    checkpoint_writer_destroy(ranks[0].writer);
    checkpoint_writer_destroy(ranks[1].writer);
    size_t count;
    OK(fixture_check_all(directory_of(state), &count));
    assert_int_equal(count, 4);
    assert_int_equal(count_names(directory_of(state), ""), 4);
}

static void test_a_rank_may_leave_when_its_shard_is_written(void **state)
{
    struct fixture_rank ranks[2];
    fixture_ranks(ranks, directory_of(state), 1, 2, 5);
    OK(fixture_create(&ranks[0]));
    OK(fixture_begin(&ranks[0]));
    checkpoint_writer_destroy(ranks[0].writer); /* at once */
    fixture_run(&ranks[1], 1);
    assert_int_equal(ranks[1].status.phase, CHECKPOINT_DONE);
    OK(fixture_check(within(directory_of(state), "step-000000005")));
    fixture_forget(ranks, 2);
}

/* ---- Giving up ---- */

static void test_who_waits_in_vain_gives_up(void **state)
{
    struct fixture_rank ranks[2];
    fixture_ranks(ranks, directory_of(state), 1, 2, 5);
    ranks[0].patience_s = 0.02;
    fixture_run(&ranks[0], 1);
    assert_int_equal(ranks[0].status.phase, CHECKPOINT_FAILED);
    FAILS(ranks[0].status.error, ERR_TIMEOUT, "the shard of rank 1 did not come within 0.02 s");
    ranks[0].status.error = NULL;
    fixture_run(&ranks[1], 1); /* too late */
    assert_int_equal(ranks[1].status.phase, CHECKPOINT_FAILED);
    FAILS(ranks[1].status.error, ERR_ABORTED,
          "step 5 was given up: rank 0: the shard of rank 1 did not come");
    ranks[1].status.error = NULL;
    fixture_forget(ranks, 2);
    assert_int_equal(count_names(directory_of(state), "step-"), 0);
}

/* Nobody but rank 0 makes the work directory, so one that a newer attempt swept away stays away;
 * and a rank that fails before it is there leaves word all the same. */
static void test_the_directory_is_made_once(void **state)
{
    struct fixture_rank ranks[2];
    fixture_ranks(ranks, directory_of(state), 1, 2, 5);
    ranks[1].patience_s = 0.02;
    fixture_run(&ranks[1], 1);
    assert_int_equal(ranks[1].status.phase, CHECKPOINT_FAILED);
    FAILS(ranks[1].status.error, ERR_TIMEOUT, "the directory of rank 0 did not come within 0.02 s");
    ranks[1].status.error = NULL;
    assert_int_equal(count_names(directory_of(state), ".partial"), 0);
    fixture_run(&ranks[0], 1);
    assert_int_equal(ranks[0].status.phase, CHECKPOINT_FAILED);
    FAILS(ranks[0].status.error, ERR_ABORTED,
          "step 5 was given up: rank 1: the directory of rank 0");
    ranks[0].status.error = NULL;
    fixture_forget(ranks, 2);
    assert_int_equal(count_names(directory_of(state), "step-"), 0);
}

static void test_a_failure_is_told_to_all_and_the_next_one_works(void **state)
{
    struct fixture_rank ranks[2];
    struct checkpoint_status status[2];
    char path[512];
    fixture_ranks(ranks, directory_of(state), 1, 2, 5);
    /* Where rank 1 wants its shard there is a directory. */
    snprintf(path, sizeof path, "%s", within(directory_of(state), ".partial-1-step-000000005-1"));
    assert_int_equal(mkdir(path, 0777), 0);
    strcat(path, "/step-000000005");
    assert_int_equal(mkdir(path, 0777), 0);
    strcat(path, "/shard-00001-of-00002.safetensors");
    assert_int_equal(mkdir(path, 0777), 0);
    for (int r = 0; r < 2; r++) {
        OK(fixture_create(&ranks[r]));
        OK(fixture_begin(&ranks[r]));
    }
    for (int r = 0; r < 2; r++) {
        checkpoint_wait(ranks[r].writer, FIXTURE_WAIT_S, &status[r]);
        assert_int_equal(status[r].phase, CHECKPOINT_FAILED);
        assert_int_equal(status[r].step, 5);
    }
    FAILS(status[0].error, ERR_ABORTED, "step 5 was given up: rank 1: ");
    FAILS(status[1].error, ERR_IO, "shard-00001-of-00002.safetensors: Is a directory");
    assert_int_equal(count_names(directory_of(state), "step-"), 0);
    /* The same step again. */
    for (int r = 0; r < 2; r++)
        OK(fixture_begin(&ranks[r]));
    for (int r = 0; r < 2; r++) {
        checkpoint_wait(ranks[r].writer, FIXTURE_WAIT_S, &status[r]);
        assert_int_equal(status[r].phase, CHECKPOINT_DONE);
        free(status[r].manifest);
        checkpoint_writer_destroy(ranks[r].writer);
    }
    OK(fixture_check(within(directory_of(state), "step-000000005")));
    assert_int_equal(count_names(directory_of(state), ""), 1); /* rank 0 swept what had failed */
}

static void test_ranks_that_disagree_write_nothing(void **state)
{
    struct fixture_rank ranks[2];
    fixture_ranks(ranks, directory_of(state), 1, 2, 5);
    ranks[1].data_position = 21;
    fixture_run(ranks, 2);
    for (int r = 0; r < 2; r++)
        assert_int_equal(ranks[r].status.phase, CHECKPOINT_FAILED);
    bool first = err_kind(ranks[0].status.error) == ERR_INTERNAL;
    FAILS(ranks[first ? 0 : 1].status.error, ERR_INTERNAL, "writes another checkpoint than rank");
    ranks[first ? 0 : 1].status.error = NULL;
    fixture_forget(ranks, 2);
    assert_int_equal(count_names(directory_of(state), "step-"), 0);
}

/* ---- A step that is taken ---- */

static void test_the_checkpoint_of_an_older_attempt_stays(void **state)
{
    struct checkpoint *c;
    fixture_write(directory_of(state), 1, 2, 5);
    fixture_write(directory_of(state), 2, 3, 5);
    OK(checkpoint_open(within(directory_of(state), "step-000000005"), true, &c));
    assert_int_equal(checkpoint_manifest(c)->facts.attempt, 1);
    checkpoint_close(c);
    assert_int_equal(count_names(directory_of(state), ""), 1);
}

static void expect_in_the_way(const char *directory, const char *text)
{
    struct fixture_rank ranks[2];
    fixture_ranks(ranks, directory, 1, 2, 5);
    fixture_run(ranks, 2);
    int told = 0;
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].status.phase, CHECKPOINT_FAILED);
        told += strstr(err_message(ranks[r].status.error), text) != NULL;
    }
    if (told == 0)
        fail_msg("%s", err_message(ranks[0].status.error));
    fixture_forget(ranks, 2);
}

static void test_what_is_in_the_way_is_left_alone(void **state)
{
    const char *directory = directory_of(state);
    assert_int_equal(mkdir(within(directory, "step-000000005"), 0777), 0);
    expect_in_the_way(directory, "is in the way and is no checkpoint");
    put_file(within(directory, "step-000000005/manifest.json"), "{\"version\": 1}");
    expect_in_the_way(directory, "manifest.json: job must be a whole number");
    OK(checkpoint_remove(within(directory, "step-000000005")));
    fixture_write(directory, 1, 1, 6);
    char other[512];
    snprintf(other, sizeof other, "%s", within(directory, "step-000000006"));
    assert_int_equal(rename(other, within(directory, "step-000000005")), 0);
    expect_in_the_way(directory, "it is step 6 of job 7");
    OK(fixture_check(within(directory, "step-000000005"))); /* untouched */
}

/* ---- The directory ---- */

static void test_the_newest_that_is_whole(void **state)
{
    char *path;
    OK(checkpoint_newest(within(directory_of(state), "none"), &path));
    assert_null(path);
    OK(checkpoint_newest(directory_of(state), &path));
    assert_null(path);
    fixture_write(directory_of(state), 1, 2, 9);
    fixture_write(directory_of(state), 1, 1, 10);
    fixture_write(directory_of(state), 1, 1, 11);
    /* Not the name of a checkpoint. */
    assert_int_equal(mkdir(within(directory_of(state), "step-12"), 0777), 0);
    assert_int_equal(mkdir(within(directory_of(state), "step-000000013x"), 0777), 0);
    assert_int_equal(mkdir(within(directory_of(state), "step-000000014"), 0777), 0);
    OK(checkpoint_newest(directory_of(state), &path)); /* 14 has no manifest */
    assert_string_equal(path, within(directory_of(state), "step-000000011"));
    free(path);
    put_file(within(directory_of(state), "step-000000011/shard-00000-of-00001.safetensors"), "");
    OK(checkpoint_newest(directory_of(state), &path));
    assert_string_equal(path, within(directory_of(state), "step-000000010"));
    free(path);
    int64_t *steps;
    size_t count;
    OK(checkpoint_list(directory_of(state), &steps, &count));
    assert_int_equal(count, 4);
    assert_int_equal(steps[0], 9);
    assert_int_equal(steps[3], 14);
    free(steps);
}

static void test_steps_of_ten_digits_sort_by_number(void **state)
{
    char *path;
    fixture_write(directory_of(state), 1, 1, 999999999);
    fixture_write(directory_of(state), 1, 1, 1000000000);
    OK(checkpoint_newest(directory_of(state), &path));
    assert_string_equal(path, within(directory_of(state), "step-1000000000"));
    free(path);
}

static void test_removal(void **state)
{
    fixture_write(directory_of(state), 1, 2, 1);
    fixture_write(directory_of(state), 1, 2, 2);
    OK(checkpoint_remove(within(directory_of(state), "step-000000001/")));
    assert_int_equal(count_names(directory_of(state), ""), 1);
    FAILS(checkpoint_remove(within(directory_of(state), "step-000000001")), ERR_NOT_FOUND,
          "step-000000001 does not exist");
    /* Left by a deletion of the same step that was cut short. */
    assert_int_equal(mkdir(within(directory_of(state), ".deleting-step-000000002.0"), 0777), 0);
    put_file(within(directory_of(state), ".deleting-step-000000002.0/manifest.json"), "");
    OK(checkpoint_remove(within(directory_of(state), "step-000000002")));
    assert_int_equal(count_names(directory_of(state), ""), 1);
    OK(checkpoint_clean(directory_of(state), 1));
    assert_int_equal(count_names(directory_of(state), ""), 0);
}

static void test_cleaning(void **state)
{
    static const char *const names[] = {
        ".partial-1-step-000000001-1", ".partial-2-step-000000001-7",
        ".aborted-2-step-000000001-1", ".deleting-step-000000001.0",
        ".partial-3-step-000000001-1", ".aborted-3-step-000000001-2",
        ".partial-x-step-000000001-1", "notes.txt",
    };
    fixture_write(directory_of(state), 1, 2, 1);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        assert_int_equal(mkdir(within(directory_of(state), names[i]), 0777), 0);
        snprintf(path, sizeof path, "%s/inner", within(directory_of(state), names[i]));
        assert_int_equal(mkdir(path, 0777), 0);
        strcat(path, "/file");
        put_file(path, "text");
    }
    OK(checkpoint_clean(directory_of(state), 2));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_int_equal(access(within(directory_of(state), names[i]), F_OK), i < 4 ? -1 : 0);
    OK(fixture_check(within(directory_of(state), "step-000000001")));
    FAILS(checkpoint_clean(within(directory_of(state), "none"), 2), ERR_NOT_FOUND, "none");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_every_world_loads_every_other),
        TEST(test_a_rank_may_hold_nothing),
        TEST(test_the_manifest_says_what_was_told),
        TEST(test_another_model_is_refused_by_name),
        TEST(test_one_at_a_time),
        TEST(test_a_rank_may_leave_when_its_shard_is_written),
        TEST(test_who_waits_in_vain_gives_up),
        TEST(test_the_directory_is_made_once),
        TEST(test_a_failure_is_told_to_all_and_the_next_one_works),
        TEST(test_ranks_that_disagree_write_nothing),
        TEST(test_the_checkpoint_of_an_older_attempt_stays),
        TEST(test_what_is_in_the_way_is_left_alone),
        TEST(test_the_newest_that_is_whole),
        TEST(test_steps_of_ten_digits_sort_by_number),
        TEST(test_removal),
        TEST(test_cleaning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
