/* The writer thread, the readers, opening and refusing, and what survives a kill. */
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "store/events.h"
#include "store/jobs.h"
#include "store/migrate.h"
#include "store_fixture.h"

/* ---- writes to play with ---- */

struct insert {
    const char *name;
    struct err *(*then)(struct store_tx *tx); /* after the insertion; may be NULL */
    int64_t id;
};

static struct err *insert_job(struct store_tx *tx, void *arg)
{
    struct insert *insert = arg;
    struct store_job job = {
        .name = insert->name, .spec_json = "{}", .device = "cpu", .world = 1, .steps = 1};
    TRY(store_job_insert(tx, &job, store_now(), &insert->id));
    return insert->then ? insert->then(tx) : NULL;
}

static struct err *fail_on_purpose(struct store_tx *tx)
{
    (void)tx;
    return err_new(ERR_CONFLICT, "on purpose");
}

/* What SQLite may do when the disk refuses. */
static struct err *lose_the_transaction(struct store_tx *tx)
{
    TRY(store_script(tx, "lose the transaction", "ROLLBACK"));
    return err_new(ERR_IO, "lost");
}

struct gate {
    sem_t entered, opened;
};

/* Holds the writer, so that what is submitted meanwhile is one group. */
static struct err *wait_at_gate(struct store_tx *tx, void *arg)
{
    (void)tx;
    struct gate *gate = arg;
    sem_post(&gate->entered);
    sem_wait(&gate->opened);
    return NULL;
}

static void gate_close(struct store *store, struct gate *gate)
{
    sem_init(&gate->entered, 0, 0);
    sem_init(&gate->opened, 0, 0);
    OK(store_write(store, wait_at_gate, gate, NULL, NULL));
    sem_wait(&gate->entered);
}

struct outcome {
    sem_t done;
    struct err *err;
};

static void keep_outcome(void *user, struct err *e)
{
    struct outcome *o = user;
    o->err = e;
    sem_post(&o->done);
}

/* The names of all jobs in order, with a comma behind each. */
static void check_jobs(struct store *store, const char *expected)
{
    struct store_tx *tx;
    struct store_jobs jobs;
    struct store_page page = {.limit = 1000, .oldest_first = true};
    char names[1024] = "";
    OK(store_read_begin(store, &tx));
    OK(store_jobs_list(tx, NULL, &page, &jobs));
    for (size_t i = 0; i < jobs.count; i++) {
        strcat(names, jobs.items[i].name);
        strcat(names, ",");
    }
    store_read_end(tx);
    assert_string_equal(names, expected);
}

static void add(struct store *store, const char *name)
{
    struct insert insert = {.name = name};
    OK(store_write_wait(store, insert_job, &insert));
}

/* ---- opening ---- */

static void test_open_makes_and_keeps(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    OK(store_open(f->path, NULL, &store));
    struct stat st;
    assert_int_equal(stat(f->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    add(store, "one");
    store_close(store);
    OK(store_open(f->path, NULL, &store));
    check_jobs(store, "one,");
    store_close(store);
    FAILS(store_open("/tmp/no/such/directory/x.db", NULL, &store), ERR_IO,
          "/tmp/no/such/directory/x.db");
    assert_null(store);
    FAILS(store_open(f->directory, NULL, &store), ERR_INVALID, "is not a file");
    store_close(NULL);
    store_read_end(NULL);
}

struct bytes {
    char *data;
    size_t size;
};

static struct bytes read_file(const char *path)
{
    struct bytes b = {0};
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    b.size = (size_t)ftell(file);
    rewind(file);
    b.data = malloc(b.size + 1);
    assert_non_null(b.data);
    assert_int_equal(fread(b.data, 1, b.size, file), b.size);
    fclose(file);
    return b;
}

static void write_file(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static void check_unchanged(const char *path, struct bytes before)
{
    struct bytes after = read_file(path);
    assert_int_equal(after.size, before.size);
    assert_memory_equal(after.data, before.data, before.size);
    free(after.data);
}

/* As a crashed newer daemon leaves it: the version is in the log, not yet in the file. */
static void test_newer_version_is_refused_untouched(void **state)
{
    struct fixture *f = *state;
    char wal[96], expected[96];
    snprintf(wal, sizeof wal, "%s-wal", f->path);
    struct store *store;
    OK(store_open(f->path, NULL, &store));
    add(store, "one");
    store_close(store);
    OK(store_connect(&f->tx, f->path, false));
    char sql[64];
    snprintf(sql, sizeof sql, "PRAGMA user_version = %d", store_schema.version + 7);
    OK(store_script(&f->tx, "grow", sql));
    struct bytes db = read_file(f->path), log = read_file(wal);
    store_disconnect(&f->tx);
    write_file(f->path, db.data, db.size);
    write_file(wal, log.data, log.size);

    snprintf(expected, sizeof expected, "has version %d and this dllmd knows versions up to %d",
             store_schema.version + 7, store_schema.version);
    FAILS(store_open(f->path, NULL, &store), ERR_INVALID, expected);
    check_unchanged(f->path, db);
    check_unchanged(wal, log);
    free(db.data);
    free(log.data);
}

static void test_foreign_and_damaged_files_are_refused(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    char text[5000];
    memset(text, 'x', sizeof text);
    write_file(f->path, text, sizeof text);
    FAILS(store_open(f->path, NULL, &store), ERR_IO, "damaged or not a database");
    write_file(f->path, text, 20);
    FAILS(store_open(f->path, NULL, &store), ERR_IO, "damaged or not a database");
    write_file(f->path, "", 0); /* a daemon that died in its first second */
    OK(store_open(f->path, NULL, &store));
    for (int i = 0; i < 50; i++)
        add(store, "one");
    store_close(store);

    struct bytes whole = read_file(f->path);
    write_file(f->path, whole.data, whole.size / 2);
    FAILS(store_open(f->path, NULL, &store), ERR_IO, f->path);
    memset(whole.data + 4096, 0x5a, 4096);
    write_file(f->path, whole.data, whole.size);
    FAILS(store_open(f->path, NULL, &store), ERR_IO, "is damaged");
    check_unchanged(f->path, whole);
    free(whole.data);

    unlink(f->path);
    write_file(f->path, "", 0);
    OK(store_connect(&f->tx, f->path, false));
    OK(store_script(&f->tx, "make another's table", "CREATE TABLE t (x)"));
    store_disconnect(&f->tx);
    FAILS(store_open(f->path, NULL, &store), ERR_INVALID, "a database of another program");
}

static int64_t number(struct store_tx *tx, const char *sql)
{
    struct store_rows rows;
    OK(store_query(tx, &rows, "read a number", sql));
    assert_true(store_next(&rows));
    int64_t n = store_int(&rows, 0);
    OK(store_finish(&rows));
    return n;
}

static void test_migrations(void **state)
{
    struct fixture *f = *state;
    struct store_tx *tx = &f->tx;
    const char *scripts[] = {
        "CREATE TABLE a (id INTEGER PRIMARY KEY, x TEXT) STRICT;"
        "CREATE TABLE b (a_id INTEGER NOT NULL REFERENCES a) STRICT;",
        /* A table that is referred to is made anew. */
        "CREATE TABLE a2 (id INTEGER PRIMARY KEY, x TEXT, y INTEGER NOT NULL) STRICT;"
        "INSERT INTO a2 SELECT id, x, 5 FROM a; DROP TABLE a; ALTER TABLE a2 RENAME TO a;",
        "ALTER TABLE a ADD COLUMN z TEXT; CREATE TABLE a (id INTEGER);",
    };
    struct store_schema schema = {scripts, 1};
    write_file(f->path, "", 0);
    OK(store_connect(tx, f->path, false));
    OK(store_migrate(tx, &schema));
    assert_int_equal(number(tx, "PRAGMA user_version"), 1);
    OK(store_script(tx, "fill",
                    "INSERT INTO a VALUES (1, 'x'), (2, 'y');"
                    "INSERT INTO b VALUES (2), (1);"));
    schema.version = 2;
    OK(store_migrate(tx, &schema));
    OK(store_migrate(tx, &schema));
    assert_int_equal(number(tx, "PRAGMA user_version"), 2);
    assert_int_equal(number(tx, "SELECT sum(y) FROM a JOIN b ON b.a_id = a.id"), 10);
    assert_int_equal(number(tx, "PRAGMA foreign_keys"), 1);
    OK(store_probe(f->path, &schema));

    schema.version = 3;
    FAILS(store_migrate(tx, &schema), ERR_INTERNAL, "from version 2 to 3 failed and was undone");
    assert_int_equal(number(tx, "PRAGMA user_version"), 2);
    assert_int_equal(number(tx, "SELECT count(*) FROM pragma_table_info('a') WHERE name = 'z'"), 0);
    scripts[2] = "DELETE FROM a WHERE id = 2";
    FAILS(store_migrate(tx, &schema), ERR_INTERNAL, "rows of b would point nowhere");
    assert_int_equal(number(tx, "SELECT count(*) FROM a"), 2);
    schema.version = 1;
    FAILS(store_probe(f->path, &schema), ERR_INVALID, "has version 2");
}

/* ---- groups ---- */

static void test_failing_write_undoes_itself_only(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    struct gate gate;
    OK(store_open(f->path, NULL, &store));
    struct insert inserts[] = {{.name = "a"},
                               {.name = "b", .then = fail_on_purpose},
                               {.name = "c"},
                               {.name = "d", .then = lose_the_transaction},
                               {.name = "e"}};
    struct outcome outcomes[5];
    gate_close(store, &gate);
    for (int i = 0; i < 5; i++) {
        outcomes[i].err = NULL;
        sem_init(&outcomes[i].done, 0, 0);
        OK(store_write(store, insert_job, &inserts[i], keep_outcome, &outcomes[i]));
    }
    sem_post(&gate.opened);
    for (int i = 0; i < 5; i++)
        sem_wait(&outcomes[i].done);
    OK(outcomes[0].err);
    FAILS(outcomes[1].err, ERR_CONFLICT, "on purpose");
    OK(outcomes[2].err);
    FAILS(outcomes[3].err, ERR_IO, "lost");
    OK(outcomes[4].err);
    check_jobs(store, "a,c,e,");
    store_close(store);
}

static void test_full_queue_refuses(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    struct gate gate;
    OK(store_open(f->path, &(struct store_options){.queue_limit = 2}, &store));
    struct insert inserts[] = {{.name = "a"}, {.name = "b"}, {.name = "c"}};
    gate_close(store, &gate);
    OK(store_write(store, insert_job, &inserts[0], NULL, NULL));
    OK(store_write(store, insert_job, &inserts[1], NULL, NULL));
    FAILS(store_write(store, insert_job, &inserts[2], NULL, NULL), ERR_CONFLICT,
          "busy: 2 writes are waiting");
    sem_post(&gate.opened);
    add(store, "d"); /* waits for room */
    check_jobs(store, "a,b,d,");

    /* What is queued when the store is closed is committed first. */
    gate_close(store, &gate);
    OK(store_write(store, insert_job, &inserts[2], NULL, NULL));
    sem_post(&gate.opened);
    store_close(store);
    OK(store_open(f->path, NULL, &store));
    check_jobs(store, "a,b,d,c,");
    store_close(store);
}

#define SUBMITTERS 4
#define EACH 150

struct submitter {
    struct store *store;
    struct insert inserts[EACH];
    int64_t done; /* written by the writer thread only */
    bool in_order;
    sem_t finished;
};

static void count_done(void *user, struct err *e)
{
    struct submitter *s = user;
    s->in_order &= !e && (s->done == 0 || s->inserts[s->done].id > s->inserts[s->done - 1].id);
    err_free(e);
    if (++s->done == EACH)
        sem_post(&s->finished);
}

static void *submit(void *arg)
{
    struct submitter *s = arg;
    for (int i = 0; i < EACH;) {
        struct err *e = store_write(s->store, insert_job, &s->inserts[i], count_done, s);
        if (!e)
            i++;
        else { /* busy */
            err_free(e);
            usleep(1000);
        }
        if (i % 32 == 0) { /* readers at the same time */
            struct store_tx *tx;
            int64_t counts[STORE_JOB_STATES];
            e = store_read_begin(s->store, &tx);
            if (!e)
                e = store_jobs_count(tx, counts);
            store_read_end(tx);
            if (e)
                return e;
        }
    }
    sem_wait(&s->finished);
    return NULL;
}

static void test_many_submitters(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    OK(store_open(f->path,
                  &(struct store_options){.queue_limit = 64, .group_limit = 16, .readers = 2},
                  &store));
    struct submitter *submitters = calloc(SUBMITTERS, sizeof *submitters);
    pthread_t threads[SUBMITTERS];
    assert_non_null(submitters);
    for (int i = 0; i < SUBMITTERS; i++) {
        submitters[i].store = store;
        submitters[i].in_order = true;
        sem_init(&submitters[i].finished, 0, 0);
        for (int j = 0; j < EACH; j++)
            submitters[i].inserts[j].name = "x";
        assert_int_equal(pthread_create(&threads[i], NULL, submit, &submitters[i]), 0);
    }
    for (int i = 0; i < SUBMITTERS; i++) {
        void *e;
        pthread_join(threads[i], &e);
        OK(e);
        assert_true(submitters[i].in_order);
        assert_int_equal(submitters[i].done, EACH);
    }
    struct store_tx *tx;
    int64_t counts[STORE_JOB_STATES];
    OK(store_read_begin(store, &tx));
    OK(store_jobs_count(tx, counts));
    store_read_end(tx);
    assert_int_equal(counts[STORE_JOB_QUEUED], SUBMITTERS * EACH);
    store_close(store);
    free(submitters);
}

static void test_waits_for_another_process(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    OK(store_open(f->path, NULL, &store));
    OK(store_connect(&f->tx, f->path, false));
    OK(store_script(&f->tx, "lock", "BEGIN IMMEDIATE"));
    struct insert insert = {.name = "late"};
    struct outcome outcome = {.err = NULL};
    sem_init(&outcome.done, 0, 0);
    OK(store_write(store, insert_job, &insert, keep_outcome, &outcome));
    usleep(50000);
    assert_int_equal(sem_trywait(&outcome.done), -1);
    OK(store_script(&f->tx, "unlock", "ROLLBACK"));
    sem_wait(&outcome.done);
    OK(outcome.err);
    check_jobs(store, "late,");
    store_close(store);
}

/* ---- reads ---- */

static void test_reads_see_a_snapshot_and_do_not_write(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    struct store_tx *tx;
    OK(store_open(f->path, &(struct store_options){.readers = 2}, &store));
    add(store, "one");
    OK(store_read_begin(store, &tx));
    int64_t counts[STORE_JOB_STATES];
    OK(store_jobs_count(tx, counts));
    assert_int_equal(counts[STORE_JOB_QUEUED], 1);
    add(store, "two");
    OK(store_jobs_count(tx, counts));
    assert_int_equal(counts[STORE_JOB_QUEUED], 1);
    check_jobs(store, "one,two,"); /* the other reader, later */
    struct insert insert = {.name = "no"};
    FAILS(insert_job(tx, &insert), ERR_INTERNAL, "a read transaction may not write");
    store_read_end(tx);
    check_jobs(store, "one,two,");
    store_close(store);
}

static void *read_once(void *arg)
{
    struct store_tx *tx;
    struct err *e = store_read_begin(arg, &tx);
    store_read_end(tx);
    return e;
}

static void test_reads_wait_for_a_connection(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    struct store_tx *tx;
    pthread_t thread;
    void *e;
    OK(store_open(f->path, &(struct store_options){.readers = 1}, &store));
    OK(store_read_begin(store, &tx));
    assert_int_equal(pthread_create(&thread, NULL, read_once, store), 0);
    usleep(10000);
    store_read_end(tx);
    pthread_join(thread, &e);
    OK(e);
    store_close(store);
}

/* ---- a full disk ---- */

static struct err *limit_pages(struct store_tx *tx, void *arg)
{
    char sql[64];
    snprintf(sql, sizeof sql, "PRAGMA max_page_count = %lld", (long long)*(int64_t *)arg);
    return store_script(tx, "limit the pages", sql);
}

static void test_full_disk(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    OK(store_open(f->path, NULL, &store));
    char *long_name = malloc(1 << 20);
    assert_non_null(long_name);
    memset(long_name, 'n', (1 << 20) - 1);
    long_name[(1 << 20) - 1] = 0;
    int64_t few = 80, many = 1 << 30;
    OK(store_write_wait(store, limit_pages, &few));

    struct insert inserts[] = {{.name = "a"}, {.name = long_name}, {.name = "b"}};
    struct outcome outcomes[3];
    struct gate gate;
    gate_close(store, &gate);
    for (int i = 0; i < 3; i++) {
        outcomes[i].err = NULL;
        sem_init(&outcomes[i].done, 0, 0);
        OK(store_write(store, insert_job, &inserts[i], keep_outcome, &outcomes[i]));
    }
    sem_post(&gate.opened);
    for (int i = 0; i < 3; i++)
        sem_wait(&outcomes[i].done);
    OK(outcomes[0].err);
    FAILS(outcomes[1].err, ERR_IO, "is full; make room there");
    OK(outcomes[2].err);
    check_jobs(store, "a,b,");

    OK(store_write_wait(store, limit_pages, &many));
    add(store, "c");
    OK(store_write_wait(store, insert_job, &inserts[1]));
    struct store_tx *tx;
    struct store_job job;
    OK(store_read_begin(store, &tx));
    OK(store_job_get(tx, inserts[1].id, &job));
    assert_int_equal(strlen(job.name), (1 << 20) - 1);
    store_read_end(tx);
    store_close(store);
    free(long_name);
}

/* The log may not grow: the commit itself fails, whatever its functions said. */
static void test_failing_commit(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    char wal[96];
    snprintf(wal, sizeof wal, "%s-wal", f->path);
    OK(store_open(f->path, NULL, &store));
    add(store, "a");
    struct stat st;
    assert_int_equal(stat(wal, &st), 0);
    struct rlimit whole, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &whole), 0);
    small = whole;
    small.rlim_cur = (rlim_t)st.st_size;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct insert b = {.name = "b"}, c = {.name = "c"};
    struct err *first = store_write_wait(store, insert_job, &b);
    struct err *second = store_write_wait(store, insert_job, &c);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &whole), 0);
    FAILS(first, ERR_IO, "cannot commit a group of writes: disk I/O error");
    FAILS(second, ERR_IO, "check its disk");
    check_jobs(store, "a,");
    add(store, "d");
    check_jobs(store, "a,d,");
    store_close(store);
    OK(store_open(f->path, NULL, &store));
    check_jobs(store, "a,d,");
    store_close(store);
}

/* SQLite is given a little more memory each time, until it has enough. */
static void test_short_memory(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    OK(store_open(f->path, NULL, &store));
    sqlite3_int64 used = sqlite3_memory_used();
    int64_t written = 0;
    int failed = 0;
    for (sqlite3_int64 extra = 0; extra < 100000 || !written; extra += 1000) {
        struct insert insert = {.name = "x"};
        sqlite3_hard_heap_limit64(used + extra);
        struct err *e = store_write_wait(store, insert_job, &insert);
        sqlite3_hard_heap_limit64(0);
        if (e)
            assert_int_equal(err_kind(e), ERR_NO_MEMORY);
        written += !e;
        failed += !!e;
        err_free(e);
    }
    assert_true(failed > 3);
    struct store_tx *tx;
    int64_t counts[STORE_JOB_STATES];
    OK(store_read_begin(store, &tx));
    OK(store_jobs_count(tx, counts));
    assert_int_equal(counts[STORE_JOB_QUEUED], written);
    assert_int_equal(number(tx, "SELECT count(*) FROM job_events"), written);
    store_read_end(tx);
    store_close(store);
}

/* ---- a kill ---- */

static int acknowledged_fd;

static void acknowledge(void *user, struct err *e)
{
    struct insert *insert = user;
    if (e || write(acknowledged_fd, &insert->id, sizeof insert->id) != sizeof insert->id)
        _exit(3);
    free(insert);
}

/* Submits without end. */
static void be_killed(const char *path)
{
    struct store *store;
    if (store_open(path, NULL, &store))
        _exit(1);
    for (;;) {
        struct insert *insert = calloc(1, sizeof *insert);
        if (!insert)
            _exit(2);
        insert->name = "x";
        while (insert) {
            struct err *e = store_write(store, insert_job, insert, acknowledge, insert);
            if (!e)
                insert = NULL;
            else
                usleep(100);
            err_free(e);
        }
    }
}

static void test_kill_loses_nothing_acknowledged(void **state)
{
    struct fixture *f = *state;
    struct store *store;
    int64_t last = 0, id, target = 0;
    for (int round = 0; round < 4; round++) {
        int fds[2];
        assert_int_equal(pipe(fds), 0);
        pid_t child = fork();
        if (child == 0) {
            close(fds[0]);
            acknowledged_fd = fds[1];
            be_killed(f->path);
        }
        close(fds[1]);
        target += 200 + 77 * round;
        while (read(fds[0], &id, sizeof id) == sizeof id) {
            assert_true(id > last); /* ids are never used twice, not even over kills */
            last = id;
            if (id >= target)
                kill(child, SIGKILL);
        }
        close(fds[0]);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

        OK(store_open(f->path, NULL, &store));
        struct store_tx *tx;
        OK(store_read_begin(store, &tx));
        assert_true(number(tx, "SELECT count(*) FROM jobs") >= last);
        assert_int_equal(number(tx, "SELECT count(*) - max(id) FROM jobs"), 0);
        /* Whole transactions only: each job has its first event. */
        assert_int_equal(number(tx, "SELECT (SELECT count(*) FROM jobs)"
                                    " - (SELECT count(DISTINCT job_id) FROM job_events)"),
                         0);
        target = last = number(tx, "SELECT max(id) FROM jobs");
        store_read_end(tx);
        store_close(store);
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_directory, fixture_remove)
    const struct CMUnitTest tests[] = {
        TEST(test_kill_loses_nothing_acknowledged),
        TEST(test_open_makes_and_keeps),
        TEST(test_newer_version_is_refused_untouched),
        TEST(test_foreign_and_damaged_files_are_refused),
        TEST(test_migrations),
        TEST(test_failing_write_undoes_itself_only),
        TEST(test_full_queue_refuses),
        TEST(test_many_submitters),
        TEST(test_waits_for_another_process),
        TEST(test_reads_see_a_snapshot_and_do_not_write),
        TEST(test_reads_wait_for_a_connection),
        TEST(test_full_disk),
        TEST(test_failing_commit),
        TEST(test_short_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
