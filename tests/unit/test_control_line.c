/* The daemon's end of the line: lines in pieces, many in one, too long, not JSON; strangers; what
 * is sent before a line is closed. The loop runs in the test's own thread. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/log.h"
#include "daemon/control/line.h"

struct place {
    char directory[64], path[96];
    uv_loop_t loop;
    struct line_server *server;
    int messages, closed;
    int64_t sum; /* of the messages' n */
    struct line *last;
    bool answer; /* each message, and hang up */
    bool hold;   /* after each message */
};

static void on_message(void *user, struct line *line, const cJSON *message)
{
    struct place *p = user;
    p->messages++;
    p->sum += cJSON_GetObjectItem(message, "n")->valueint;
    p->last = line;
    line_accepted(line, p);
    if (p->hold)
        line_hold(line, true);
    if (!p->answer)
        return;
    char *large = calloc(1, 500001);
    memset(large, 'x', 500000);
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "text", large);
    free(large);
    line_send(line, json);
    line_close(line);
}

static void on_closed(void *user, struct line *line)
{
    (void)line;
    ((struct place *)user)->closed++;
}

static int open_place(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    log_set_level(LOG_LEVEL_ERROR);
    strcpy(p->directory, "/tmp/dllmd-line-XXXXXX");
    if (!mkdtemp(p->directory))
        return -1;
    snprintf(p->path, sizeof p->path, "%s/s", p->directory);
    uv_loop_init(&p->loop);
    struct line_handlers handlers = {.user = p, .message = on_message, .closed = on_closed};
    assert_null(line_server_open(&p->loop, p->path, &handlers, &p->server));
    *state = p;
    return 0;
}

static int close_place(void **state)
{
    struct place *p = *state;
    line_server_close(p->server);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    int rc = uv_loop_close(&p->loop); /* no handle is left */
    rc |= access(p->path, F_OK) == 0;
    rc |= rmdir(p->directory);
    free(p);
    return rc;
}

static void turn(struct place *p)
{
    for (int i = 0; i < 50; i++)
        uv_run(&p->loop, UV_RUN_NOWAIT);
}

static int dial(struct place *p)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, p->path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    turn(p);
    return fd;
}

/* All of it, with turns of the loop where the socket is full; false: the other end is closed. */
static bool say(struct place *p, int fd, const char *text, size_t bytes)
{
    while (bytes) {
        ssize_t n = send(fd, text, bytes, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN)
            return false;
        text += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
        turn(p);
    }
    turn(p);
    return true;
}

static void test_pieces(void **state)
{
    struct place *p = *state;
    int fd = dial(p);
    const char *text = "{\"n\":1}\n{\"n\":20}\n{\"n\":300}\n{\"n\":4000}";
    for (size_t i = 0; text[i]; i++)
        say(p, fd, text + i, 1);
    assert_int_equal(p->messages, 3);
    say(p, fd, "\n", 1);
    assert_int_equal(p->sum, 4321);
    say(p, fd, text, strlen(text)); /* in one, the last without its end */
    assert_int_equal(p->messages, 7);
    assert_int_equal(line_peer(p->last), getpid());
    close(fd);
    turn(p);
    assert_int_equal(p->messages, 7);
    assert_int_equal(p->closed, 1);
}

static void test_longest_line(void **state)
{
    struct place *p = *state;
    size_t most = 1 << 20;
    char *text = malloc(most + 1);
    memset(text, ' ', most + 1);
    memcpy(text, "{\"n\":5}", 7);
    text[most - 1] = '\n';
    int fd = dial(p);
    assert_true(say(p, fd, text, most));
    assert_int_equal(p->sum, 5);
    assert_int_equal(p->closed, 0);
    text[most - 1] = ' ';
    say(p, fd, text, most + 1); /* one byte more */
    assert_int_equal(p->messages, 1);
    assert_int_equal(p->closed, 1);
    free(text);
    close(fd);
}

static void test_nonsense(void **state)
{
    struct place *p = *state;
    static const char *const lines[] = {
        "\n",        "hello\n",        "[1]\n",   "7\n",
        "{\"n\":\n", "{\"\xff\":1}\n", "{} {}\n", "{\"n\":\"\\u0000\"}\n"};
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        int fd = dial(p);
        say(p, fd, lines[i], strlen(lines[i]));
        assert_int_equal(p->closed, i + 1);
        char byte;
        assert_int_equal(recv(fd, &byte, 1, 0), 0);
        close(fd);
    }
    assert_int_equal(p->messages, 0);
}

static void test_last_words_arrive(void **state)
{
    struct place *p = *state;
    p->answer = true;
    int fd = dial(p);
    say(p, fd, "{\"n\":1}\n{\"n\":1}\n", 16); /* the second comes after the close */
    assert_int_equal(p->messages, 1);
    static char got[600000];
    size_t bytes = 0;
    for (ssize_t n; (n = recv(fd, got + bytes, sizeof got - bytes, 0)) != 0; turn(p))
        bytes += n > 0 ? (size_t)n : 0;
    assert_int_equal(bytes, strlen("{\"text\":\"\"}\n") + 500000);
    assert_int_equal(got[bytes - 1], '\n');
    close(fd);
}

static void test_hold(void **state)
{
    struct place *p = *state;
    p->hold = true;
    int fd = dial(p);
    say(p, fd, "{\"n\":1}\n{\"n\":1}\n{\"n\":1}\n", 24);
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(p->messages, i);
        line_hold(p->last, false);
        turn(p);
    }
    assert_int_equal(p->messages, 3);
    close(fd);
    turn(p);
}

/* Strangers are few; those that are accepted do not count. */
static void test_strangers(void **state)
{
    struct place *p = *state;
    int known[10], fds[100];
    for (int i = 0; i < 10; i++) {
        known[i] = dial(p);
        say(p, known[i], "{\"n\":1}\n", 8);
    }
    for (int i = 0; i < 100; i++)
        fds[i] = dial(p);
    assert_int_equal(p->closed, 36); /* 64 may be */
    say(p, known[0], "{\"n\":1}\n", 8);
    assert_int_equal(p->messages, 11);
    for (int i = 0; i < 100; i++)
        close(fds[i]);
    turn(p);
    assert_int_equal(p->closed, 100);
    for (int i = 0; i < 10; i++)
        close(known[i]);
}

static void test_socket(void **state)
{
    struct place *p = *state;
    struct stat st;
    assert_int_equal(stat(p->path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    struct line_server *other;
    struct line_handlers handlers = {.user = p, .message = on_message, .closed = on_closed};
    struct err *e = line_server_open(&p->loop, "/nonexistent/s", &handlers, &other);
    assert_non_null(e);
    assert_non_null(strstr(err_message(e), "/nonexistent/s"));
    err_free(e);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_place, close_place)
    const struct CMUnitTest tests[] = {
        TEST(test_pieces),   TEST(test_longest_line),
        TEST(test_nonsense), TEST(test_last_words_arrive),
        TEST(test_hold),     TEST(test_strangers),
        TEST(test_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
