/* Processes by pid and start time, secrets, and starting a worker that waits for its word. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sodium.h>

#include "daemon/base/file.h"
#include "daemon/control/launch.h"
#include "daemon/control/process.h"
#include "daemon/control/secret.h"

struct place {
    char directory[64];
    char script[96]; /* a "worker" */
};

/* A worker that copies its bootstrap and some of what it finds into files. */
static const char script[] = "#!/bin/sh\n"
                             "cat <&3 >bootstrap\n"
                             "test -s bootstrap || exit 3\n"
                             "env >environment\n"
                             "ls /proc/$$/fd >descriptors\n"
                             "echo \"$1\" >argument\n"
                             "echo said\n"
                             "exit 5\n";

static int make_place(void **state)
{
    struct place *p = calloc(1, sizeof *p);
    strcpy(p->directory, "/tmp/dllmd-launch-XXXXXX");
    if (!mkdtemp(p->directory))
        return -1;
    snprintf(p->script, sizeof p->script, "%s/worker", p->directory);
    FILE *f = fopen(p->script, "w");
    fputs(script, f);
    fclose(f);
    *state = p;
    return chmod(p->script, 0755);
}

static int remove_place(void **state)
{
    struct place *p = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -r '%s'", p->directory);
    free(p);
    return system(command);
}

static char *read_text(const struct place *p, const char *name)
{
    char path[160], *text;
    size_t bytes;
    snprintf(path, sizeof path, "%s/a/b/%s", p->directory, name);
    assert_null(file_read(path, 1 << 20, &text, &bytes));
    return text;
}

static void launch(const struct place *p, struct launched *out)
{
    char directory[96];
    snprintf(directory, sizeof directory, "%s/a/b", p->directory);
    struct launch l = {.program = p->script,
                       .directory = directory,
                       .name = "rank-0",
                       .is_task = true,
                       .threads = 3,
                       .gpu = -1};
    assert_null(launch_worker(&l, out));
}

/* Waits for its end; what process_reap says. */
static int reap(struct launched *l)
{
    siginfo_t info;
    waitid(P_PID, (id_t)l->pid, &info, WEXITED | WNOWAIT);
    int signal = process_reap(l->pidfd);
    close(l->pidfd);
    return signal;
}

static void test_launch(void **state)
{
    struct place *p = *state;
    struct launched l;
    setenv("DLLMD_TEST_SECRET", "x", 1);
    launch(p, &l);
    assert_int_equal(process_start_time(l.pid), l.start_time);
    assert_null(launch_go(&l, "{\"v\":1}\n"));
    assert_int_equal(reap(&l), 0);

    char *text = read_text(p, "bootstrap");
    assert_string_equal(text, "{\"v\":1}\n");
    free(text);
    text = read_text(p, "argument");
    assert_string_equal(text, "--task\n");
    free(text);
    text = read_text(p, "rank-0.log");
    assert_string_equal(text, "said\n");
    free(text);
    text = read_text(p, "environment");
    assert_non_null(strstr(text, "OPENBLAS_NUM_THREADS=3\n"));
    assert_null(strstr(text, "DLLMD_TEST_SECRET"));
    free(text);
    text = read_text(p, "descriptors"); /* the shell may hold its script on a high one */
    assert_ptr_equal(strstr(text, "0\n1\n"), text);
    assert_null(strstr(text, "\n4\n"));
    assert_null(strstr(text, "\n5\n"));
    free(text);
}

/* The daemon dies, or changes its mind, before it says who the process is. */
static void test_launch_without_bootstrap(void **state)
{
    struct place *p = *state;
    struct launched l;
    launch(p, &l);
    close(l.bootstrap);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)l.pid, &info, WEXITED), 0);
    assert_int_equal(info.si_status, 3);
    close(l.pidfd);
    launch(p, &l);
    pid_t pid = l.pid;
    launch_abort(&l);
    assert_int_equal(process_start_time(pid), 0);
}

static void test_launch_nothing(void **state)
{
    struct place *p = *state;
    struct launched l;
    struct launch launch = {
        .program = "/nonexistent/worker", .directory = p->directory, .name = "task", .gpu = -1};
    struct err *e = launch_worker(&launch, &l);
    assert_non_null(e);
    assert_non_null(strstr(err_message(e), "cannot start /nonexistent/worker"));
    err_free(e);
    launch.directory = "/proc/nothing/here";
    e = launch_worker(&launch, &l);
    assert_non_null(e);
    assert_non_null(strstr(err_message(e), "/proc/nothing"));
    err_free(e);
}

static void test_process(void **state)
{
    (void)state;
    pid_t pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    uint64_t start = process_start_time(pid);
    assert_true(start > 0);
    assert_int_equal(process_open(pid, start + 1), -1); /* another process of that pid */
    int fd = process_open(pid, start);
    assert_true(fd >= 0);
    assert_int_equal(process_reap(fd), -1); /* it lives */
    assert_true(process_signal(fd, SIGKILL));
    siginfo_t info;
    waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT);
    assert_int_equal(process_reap(fd), SIGKILL);
    assert_false(process_signal(fd, SIGKILL));
    close(fd);
    assert_int_equal(process_open(pid, start), -1);
    assert_int_equal(process_open(0, 0), -1);
}

static void test_secrets(void **state)
{
    struct place *p = *state;
    uint8_t key[SECRET_KEY_BYTES], again[SECRET_KEY_BYTES];
    uint8_t hash[STORE_SECRET_HASH_BYTES], other[STORE_SECRET_HASH_BYTES];
    char text[SECRET_TEXT_BYTES], text2[SECRET_TEXT_BYTES], path[128];
    assert_true(sodium_init() >= 0);
    snprintf(path, sizeof path, "%s/key", p->directory);
    assert_null(secret_key_load(path, key));
    assert_null(secret_key_load(path, again));
    assert_memory_equal(key, again, sizeof key);
    secret_make(key, text, hash);
    secret_make(key, text2, other);
    assert_int_equal(strlen(text), 64);
    assert_string_not_equal(text, text2);
    assert_true(secret_matches(key, text, hash));
    assert_false(secret_matches(key, text2, hash));
    assert_false(secret_matches(key, "", hash));
    key[0] ^= 1;
    assert_false(secret_matches(key, text, hash));
    assert_int_equal(truncate(path, 5), 0);
    struct err *e = secret_key_load(path, key);
    assert_non_null(e);
    assert_non_null(strstr(err_message(e), "damaged"));
    err_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launch),         cmocka_unit_test(test_launch_without_bootstrap),
        cmocka_unit_test(test_launch_nothing), cmocka_unit_test(test_process),
        cmocka_unit_test(test_secrets),
    };
    return cmocka_run_group_tests(tests, make_place, remove_place);
}
