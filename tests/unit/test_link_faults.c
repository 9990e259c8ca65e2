/* A worker's link when things are broken: its journal, its bootstrap, its disk, itself, its daemon;
 * and meetings, which must survive that. */
#include "tests/unit/link_helpers.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/philox.h"

/* ---- the journal ---- */

#define RECORD(seq, step)                                                                          \
    "{\"type\":\"record\",\"seq\":" #seq ",\"time\":1.5,\"kind\":\"step\",\"step\":" #step "}\n"

static void torn_end_of_a_journal_is_cut_off(void **state)
{
    (void)state;
    static const char *const tails[] = {"", "{", "{\"type\":\"record\",\"seq\":3,\"time\":1.5}"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        struct fake_daemon d;
        fake_daemon_start(&d, 1, NULL, NULL);
        char journal[512];
        snprintf(journal, sizeof journal, RECORD(1, 1) RECORD(2, 2) "%s", tails[i]);
        write_text(&d, "rank-0.journal", journal);
        struct link *l = open_link(&d, 0);
        record_steps(l, 3, 5);
        link_close(l, "done", NULL, PATIENCE_S);
        assert_int_equal(cJSON_GetObjectItem(d.hello, "last_seq")->valueint, 2);
        assert_steps(&d, 5);
        char *after = read_text(&d, "rank-0.journal");
        assert_true(strncmp(after, RECORD(1, 1) RECORD(2, 2) "{\"type\":\"record\",\"seq\":3,",
                            strlen(RECORD(1, 1) RECORD(2, 2)) + 25) == 0);
        free(after);
        fake_daemon_stop(&d);
    }
}

static void journal_that_is_none_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {RECORD(1, 1) RECORD(3, 3), "line 2 does not hold record 2"},
        {RECORD(1, 1) "\n", "line 2"},
        {"garbage\n", "line 1"},
        {"[]\n", "line 1 does not hold record 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct fake_daemon d;
        fake_daemon_start(&d, 1, NULL, NULL);
        write_text(&d, "rank-0.journal", cases[i].text);
        struct link *l;
        assert_error(link_open(fake_bootstrap(&d, 0), PATIENCE_S, &l), ERR_INVALID, cases[i].part);
        free(read_text(&d, "rank-0.exit"));
        fake_daemon_stop(&d);
    }
}

/* A write that finds no room leaves no half record behind. The limit on a file's size stands for
 * a full disk. */
static void full_disk_is_an_error_and_no_torn_record(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, NULL, NULL);
    struct link *l = open_link(&d, 0);
    struct rlimit before, tight;
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    record_steps(l, 1, 10);
    tight = before;
    tight.rlim_cur = 10 * 100;
    setrlimit(RLIMIT_FSIZE, &tight);
    link_signal_stop(l); /* who shall end does not wait for room */
    struct err *e = NULL, *again = NULL;
    int written = 10;
    while (!again && written < 100) { /* fails twice */
        cJSON *fields = cJSON_CreateObject();
        cJSON_AddNumberToObject(fields, "step", written + 1);
        again = link_record(l, "step", fields);
        written += !again;
        if (!e) {
            e = again;
            again = NULL;
        }
    }
    setrlimit(RLIMIT_FSIZE, &before);
    assert_error(e, ERR_IO, "rank-0.journal");
    assert_error(again, ERR_IO, "rank-0.journal");
    record_steps(l, written + 1, written + 10);
    link_close(l, "done", NULL, PATIENCE_S);
    assert_steps(&d, written + 10);
    fake_daemon_stop(&d);
}

static void *make_room(void *user)
{
    usleep(1200000);
    setrlimit(RLIMIT_FSIZE, user);
    return NULL;
}

/* A run outlives a disk that is full for a while. */
static void full_disk_is_waited_for(void **state)
{
    (void)state;
    struct fake_daemon d;
    struct rlimit before, tight;
    pthread_t thread;
    fake_daemon_start(&d, 1, NULL, NULL);
    struct link *l = open_link(&d, 0);
    getrlimit(RLIMIT_FSIZE, &before);
    signal(SIGXFSZ, SIG_IGN);
    record_steps(l, 1, 10);
    tight = before;
    tight.rlim_cur = 10;
    setrlimit(RLIMIT_FSIZE, &tight);
    pthread_create(&thread, NULL, make_room, &before);
    record_steps(l, 11, 20);
    pthread_join(thread, NULL);
    link_close(l, "done", NULL, PATIENCE_S);
    assert_steps(&d, 20);
    fake_daemon_stop(&d);
}

/* ---- a worker is killed ---- */

static int64_t check_journal(struct fake_daemon *d)
{
    char *text = read_text(d, "rank-0.journal"), *line = text;
    int64_t n = 0;
    for (char *newline; (newline = strchr(line, '\n')); line = newline + 1) {
        *newline = '\0';
        cJSON *record = cJSON_Parse(line);
        assert_non_null(record);
        assert_int_equal(cJSON_GetObjectItem(record, "seq")->valueint, ++n);
        if (n <= d->n_records)
            assert_true(cJSON_Compare(record, d->records[n - 1], true));
        cJSON_Delete(record);
    }
    free(text);
    return n;
}

static void killed_worker_leaves_all_its_records(void **state)
{
    (void)state;
    for (int round = 0; round < 5; round++) {
        struct fake_daemon d;
        fake_daemon_start(&d, 1, NULL, NULL);
        int told[2];
        assert_int_equal(pipe(told), 0);
        int bootstrap = fake_bootstrap(&d, 0);
        fake_daemon_pause(&d); /* a process with one thread is forked */
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            struct link *l;
            if (link_open(bootstrap, PATIENCE_S, &l))
                _exit(1);
            for (int step = 1;; step++) {
                cJSON *fields = cJSON_CreateObject();
                cJSON_AddNumberToObject(fields, "step", step);
                if (link_record(l, "step", fields) || write(told[1], &step, sizeof step) < 0)
                    _exit(1);
            }
        }
        close(bootstrap);
        close(told[1]);
        fake_daemon_resume(&d);
        int last = 0, step, status;
        while (last < 1 + 777 * round && read(told[0], &step, sizeof step) == sizeof step)
            last = step;
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status));
        while (read(told[0], &step, sizeof step) == sizeof step)
            last = step;
        close(told[0]);
        fake_daemon_pause(&d);
        /* Whatever link_record had returned for is there, and nothing of what the daemon has is
         * missing. */
        int64_t written = check_journal(&d);
        assert_true(written >= last && written >= d.n_records);
        fake_daemon_resume(&d);
        fake_daemon_stop(&d);
    }
}

/* ---- the bootstrap ---- */

static int bootstrap_of(const char *text)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], text, strlen(text)), strlen(text));
    close(ends[1]);
    return ends[0];
}

#define SECRET "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define REST "\"directory\":\"/nowhere\",\"socket\":\"/nowhere\",\"secret\":\"" SECRET "\""

static void wrong_bootstraps_are_errors(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "bootstrap"},
        {"\n", "bootstrap"},
        {"{\"v\":1", "bootstrap"},
        {"[1]\n", "\"v\" must be"},
        {"{\"job\":1,\"attempt\":1,\"rank\":0," REST "}\n", "\"v\" must be"},
        {"{\"v\":2,\"job\":1,\"attempt\":1,\"rank\":0," REST "}\n", "version 2"},
        {"{\"v\":1,\"attempt\":1,\"rank\":0," REST "}\n", "\"job\" must be"},
        {"{\"v\":1,\"job\":1,\"attempt\":0,\"rank\":0," REST "}\n", "\"attempt\" must be"},
        {"{\"v\":1,\"job\":1,\"attempt\":1,\"rank\":1.5," REST "}\n", "\"rank\" must be"},
        {"{\"v\":1,\"job\":1,\"attempt\":1,\"rank\":1e12," REST "}\n", "no rank 1000000000000"},
        {"{\"v\":1,\"task\":\"7\"," REST "}\n", "\"task\" must be"},
        {"{\"v\":1,\"task\":7,\"directory\":\"\",\"socket\":\"/s\"}\n", "\"directory\" must be"},
        {"{\"v\":1,\"task\":7,\"directory\":\"/nowhere\",\"socket\":3}\n", "\"socket\" must be"},
        {"{\"v\":1,\"task\":7,\"directory\":\"/nowhere\",\"socket\":\"/"
         "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
         "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"}\n",
         "at most 107 bytes"},
        {"{\"v\":1,\"task\":7,\"directory\":\"/nowhere\",\"socket\":\"/s\",\"secret\":\"0a\"}\n",
         "64 hexadecimal digits"},
    };
    struct link *l;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_error(link_open(bootstrap_of(cases[i].text), PATIENCE_S, &l), ERR_INVALID,
                     cases[i].part);
    assert_error(link_open(bootstrap_of("{\"v\":1,\"task\":7," REST "}\n"), PATIENCE_S, &l), ERR_IO,
                 "/nowhere/task.journal");
    int closed = bootstrap_of("");
    close(closed);
    assert_error(link_open(closed, PATIENCE_S, &l), ERR_IO, "cannot read the bootstrap");
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    assert_error(link_open(ends[0], 0.1, &l), ERR_TIMEOUT, "no bootstrap");
    close(ends[1]);
}

/* ---- a daemon out of its mind ---- */

static const char *const nonsense[] = {
    "garbage",
    "",
    "null",
    "[]",
    "{}",
    "{\"type\": 5}",
    "{\"type\": \"ack\"}",
    "{\"type\": \"ack\", \"seq\": 1000000}",
    "{\"type\": \"ack\", \"seq\": -1}",
    "{\"type\": \"ack\", \"seq\": 0.5}",
    "{\"type\": \"ack\", \"seq\": 1e300}",
    "{\"type\": \"lease\", \"lease_s\": \"long\"}",
    "{\"type\": \"welcome\", \"acked\": 0, \"lease_s\": 600}",
    "{\"type\": \"exchange\", \"key\": \"k\"}",
    "{\"type\": \"exchange\", \"data\": []}",
    "{\"type\": \"stop\"",
};
#define N_NONSENSE ((int)(sizeof nonsense / sizeof *nonsense))

static void out_of_its_mind(struct fake_daemon *d, struct fake_connection *c, void *user)
{
    (void)user;
    int n = c->number - 1; /* the first one is for link_open */
    if (n < 0) {
        fake_welcome(d, c);
    } else if (n < N_NONSENSE) {
        if (fake_welcome(d, c))
            fake_send(c, "%s", nonsense[n]);
        cJSON *rest;
        while ((rest = fake_receive(d, c))) /* until the worker hangs up */
            cJSON_Delete(rest);
    } else if (n == N_NONSENSE) {
        cJSON_Delete(fake_receive(d, c));
        fake_send(c, "{\"type\": \"welcome\", \"acked\": 7}");
    } else if (n == N_NONSENSE + 1) {
        cJSON_Delete(fake_receive(d, c));
        fake_send(c, "{\"type\": \"ack\", \"seq\": 1}");
    } else if (n == N_NONSENSE + 2) {
        char *line = malloc(3 << 20);
        memset(line, ' ', 3 << 20);
        (void)!send(c->fd, line, 3 << 20, MSG_NOSIGNAL);
        free(line);
    } else {
        fake_serve(d, c);
    }
}

static void nonsense_costs_the_connection_only(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, out_of_its_mind, NULL);
    struct link *l = open_link(&d, 0);
    record_steps(l, 1, 20);
    link_close(l, "done", NULL, PATIENCE_S);
    assert_int_equal(d.connections, N_NONSENSE + 5);
    assert_steps(&d, 20);
    fake_daemon_stop(&d);
}

/* ---- meetings ---- */

static void assert_meets(struct link *l, int world, const char *key, size_t bytes)
{
    struct meeting m = link_meeting(l);
    struct meeting_bytes *all = calloc((size_t)world, sizeof *all);
    unsigned char *data = malloc(bytes + 1);
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)philox_bits(5, PHILOX_TIME, i, 0, bytes);
    assert_ok(m.exchange(m.user, key, data, bytes, world, PATIENCE_S, all));
    for (int r = 0; r < world; r++) {
        assert_int_equal(all[r].bytes, bytes);
        assert_memory_equal(all[r].data, data, bytes);
    }
    meeting_free(all, world);
    assert_null(all[0].data);
    free(data);
    free(all);
}

/* Takes the first posts and hangs up instead of answering. */
static void forget_posts(struct fake_daemon *d, struct fake_connection *c, void *user)
{
    if (c->number >= *(const int *)user) {
        fake_serve(d, c);
        return;
    }
    if (!fake_welcome(d, c))
        return;
    cJSON *post = fake_receive(d, c);
    assert_true(!post || strcmp(cJSON_GetObjectItem(post, "type")->valuestring, "exchange") == 0);
    cJSON_Delete(post);
}

static void meetings_outlive_connections(void **state)
{
    (void)state;
    struct fake_daemon d;
    int from = 3;
    fake_daemon_start(&d, 3, forget_posts, &from);
    struct link *l = open_link(&d, 0);
    assert_meets(l, 3, "gloo/world", 1000);
    assert_int_equal(d.connections, 4);
    static const size_t sizes[] = {0, 1, 2, 3, 255, 65536};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_meets(l, 3, "again", sizes[i]);
    struct meeting m = link_meeting(l);
    struct meeting_bytes all[3];
    static const char much[65537];
    assert_error(m.exchange(m.user, "much", much, sizeof much, 3, PATIENCE_S, all), ERR_INVALID,
                 "65537 bytes");
    assert_error(m.exchange(m.user, "two", "x", 1, 2, PATIENCE_S, all), ERR_INVALID,
                 "answered for 3 ranks of 2");
    link_close(l, "done", NULL, PATIENCE_S);
    fake_daemon_stop(&d);
}

struct meeter {
    struct link *link;
    char key[16];
};

static void *meet(void *user)
{
    struct meeter *m = user;
    assert_meets(m->link, 2, m->key, 500);
    return NULL;
}

static void meetings_may_go_on_at_once(void **state)
{
    (void)state;
    struct fake_daemon d;
    int from = 2;
    fake_daemon_start(&d, 2, forget_posts, &from);
    struct link *l = open_link(&d, 0);
    enum { MEETERS = 6 };
    struct meeter meeters[MEETERS];
    pthread_t threads[MEETERS];
    for (int i = 0; i < MEETERS; i++) {
        meeters[i].link = l;
        snprintf(meeters[i].key, sizeof meeters[i].key, "key-%d", i);
        pthread_create(&threads[i], NULL, meet, &meeters[i]);
    }
    for (int i = 0; i < MEETERS; i++)
        pthread_join(threads[i], NULL);
    link_close(l, "done", NULL, PATIENCE_S);
    fake_daemon_stop(&d);
}

/* Answers each post with what the test says. */
static void answer_with(struct fake_daemon *d, struct fake_connection *c, void *user)
{
    if (!fake_welcome(d, c))
        return;
    cJSON *post;
    while ((post = fake_receive(d, c))) {
        fake_send(c, "%s", *(const char **)user);
        cJSON_Delete(post);
    }
}

static void wrong_answers_fail_the_meeting(void **state)
{
    (void)state;
    static const struct {
        const char *answer;
        enum err_kind kind;
        const char *part;
    } cases[] = {
        {"{\"type\":\"exchange\",\"key\":\"k\",\"data\":[\"eA==\",\"e*==\"]}", ERR_INVALID,
         "rank 1 posted is not base64"},
        {"{\"type\":\"exchange\",\"key\":\"k\",\"data\":[\"eA==\",\"eA\"]}", ERR_INVALID,
         "rank 1 posted is not base64"},
        {"{\"type\":\"exchange\",\"key\":\"k\",\"data\":[\"eA==\",7]}", ERR_INVALID,
         "rank 1 posted is not a string"},
        {"{\"type\":\"exchange\",\"key\":\"k\",\"data\":[]}", ERR_INVALID, "0 ranks of 2"},
        {"{\"type\":\"error\",\"key\":\"k\",\"reason\":\"posted otherwise before\"}", ERR_CONFLICT,
         "posted otherwise before"},
        {"{\"type\":\"error\",\"reason\":\"no more room\"}", ERR_CONFLICT, "no more room"},
        {"{\"type\":\"error\",\"key\":\"other\",\"reason\":\"not yours\"}", ERR_TIMEOUT,
         "\"k\" was not complete"},
        {"{\"type\":\"exchange\",\"key\":\"other\",\"data\":[\"\",\"\"]}", ERR_TIMEOUT,
         "\"k\" was not complete"},
    };
    struct fake_daemon d;
    const char *answer;
    fake_daemon_start(&d, 2, answer_with, &answer);
    struct link *l = open_link(&d, 0);
    struct meeting m = link_meeting(l);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct meeting_bytes all[2];
        answer = cases[i].answer;
        double timeout_s = cases[i].kind == ERR_TIMEOUT ? 0.2 : PATIENCE_S;
        assert_error(m.exchange(m.user, "k", "x", 1, 2, timeout_s, all), cases[i].kind,
                     cases[i].part);
    }
    link_close(l, "done", NULL, PATIENCE_S);
    fake_daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(torn_end_of_a_journal_is_cut_off),
        cmocka_unit_test(journal_that_is_none_is_refused),
        cmocka_unit_test(full_disk_is_an_error_and_no_torn_record),
        cmocka_unit_test(full_disk_is_waited_for),
        cmocka_unit_test(killed_worker_leaves_all_its_records),
        cmocka_unit_test(wrong_bootstraps_are_errors),
        cmocka_unit_test(nonsense_costs_the_connection_only),
        cmocka_unit_test(meetings_outlive_connections),
        cmocka_unit_test(meetings_may_go_on_at_once),
        cmocka_unit_test(wrong_answers_fail_the_meeting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
