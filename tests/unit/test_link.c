/* A worker's link with a daemon that is there, gone, back, forgetful, refusing or commanding. */
#include "tests/unit/link_helpers.h"

#include <math.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- in good order ---- */

static void hello_records_exit(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 2, NULL, NULL);
    struct link *l = open_link(&d, 1);
    const struct link_identity *id = link_identity(l);
    assert_false(id->is_task);
    assert_int_equal(id->job, 1);
    assert_int_equal(id->attempt, 1);
    assert_int_equal(id->rank, 1);
    assert_string_equal(id->directory, d.directory);
    const cJSON *spec = cJSON_GetObjectItemCaseSensitive(link_welcome(l), "spec");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(spec, "name")), "test");
    record_steps(l, 1, 500);
    link_close(l, "done", NULL, PATIENCE_S);
    assert_steps(&d, 500);
    const cJSON *hello = d.hello;
    assert_int_equal(cJSON_GetObjectItem(hello, "pid")->valueint, getpid());
    assert_int_equal(cJSON_GetObjectItem(hello, "rank")->valueint, 1);
    assert_int_equal(cJSON_GetObjectItem(hello, "last_seq")->valueint, 0);
    assert_true(cJSON_GetObjectItem(hello, "start_time")->valuedouble > 0);
    assert_exit(&d, "rank-1.exit", "{\"status\":\"done\"}");
    char *journal = read_text(&d, "rank-1.journal"), *line = strtok(journal, "\n");
    for (int i = 0; i < 500; i++, line = strtok(NULL, "\n")) {
        assert_non_null(line);
        cJSON *record = cJSON_Parse(line);
        assert_true(cJSON_Compare(record, d.records[i], true));
        assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(record, "kind")), "step");
        cJSON_Delete(record);
    }
    assert_null(line);
    free(journal);
    fake_daemon_stop(&d);
}

static void task_has_files_of_its_own(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, NULL, NULL);
    struct link *l = open_link(&d, -1);
    assert_true(link_identity(l)->is_task);
    assert_int_equal(link_identity(l)->task, 7);
    assert_ok(link_record(l, "done", cJSON_CreateObject()));
    struct err *e = err_new(ERR_IO, "no \"space\"");
    link_close(l, "error", e, PATIENCE_S);
    err_free(e);
    assert_int_equal(cJSON_GetObjectItem(d.hello, "task")->valueint, 7);
    assert_null(cJSON_GetObjectItem(d.hello, "rank"));
    assert_exit(&d, "task.exit",
                "{\"status\":\"error\",\"kind\":\"io\",\"reason\":\"no \\\"space\\\"\"}");
    fake_daemon_stop(&d);
}

static void numbers_that_are_not_finite_go_by_name(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, NULL, NULL);
    struct link *l = open_link(&d, 0);
    cJSON *fields = cJSON_CreateObject();
    cJSON *metrics = cJSON_AddObjectToObject(fields, "metrics");
    cJSON_AddNumberToObject(metrics, "loss", NAN);
    cJSON_AddNumberToObject(metrics, "grad_norm", INFINITY);
    cJSON_AddNumberToObject(metrics, "bound", -INFINITY);
    cJSON_AddNumberToObject(metrics, "lr", 0.25);
    assert_ok(link_record(l, "step", fields));
    link_close(l, "done", NULL, PATIENCE_S);
    metrics = cJSON_GetObjectItem(d.records[0], "metrics");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(metrics, "loss")), "nan");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(metrics, "grad_norm")), "inf");
    assert_string_equal(cJSON_GetStringValue(cJSON_GetObjectItem(metrics, "bound")), "-inf");
    assert_true(cJSON_GetNumberValue(cJSON_GetObjectItem(metrics, "lr")) == 0.25);
    fake_daemon_stop(&d);
}

static void record_may_be_nearly_a_mebibyte(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, NULL, NULL);
    struct link *l = open_link(&d, 0);
    char *text = calloc(1, (1 << 20) + 1);
    for (int over = 0; over < 2; over++) {
        memset(text, 'x', (1 << 20) - 150 + (size_t)over * 150);
        cJSON *fields = cJSON_CreateObject();
        cJSON_AddStringToObject(fields, "message", text);
        struct err *e = link_record(l, "event", fields);
        if (over)
            assert_error(e, ERR_INVALID, "1048576 fit");
        else
            assert_ok(e);
    }
    free(text);
    record_step(l, 2);
    link_close(l, "done", NULL, PATIENCE_S);
    assert_int_equal(fake_records(&d), 2);
    fake_daemon_stop(&d);
}

/* ---- broken connections ---- */

/* Hangs up in the middle of what comes, each time further on. */
static void hang_up(struct fake_daemon *d, struct fake_connection *c, void *user)
{
    (void)user;
    if (c->number >= 12) {
        fake_serve(d, c);
        return;
    }
    if (!fake_welcome(d, c))
        return;
    /* A connection takes some records without a word, acknowledges some, and is cut in a line. */
    for (int i = 0; i < 7 * c->number; i++) {
        cJSON *record = fake_receive(d, c);
        if (!record)
            return;
        long long seq = (long long)cJSON_GetObjectItem(record, "seq")->valuedouble;
        fake_commit(d, record);
        if (i % 3 == 0)
            fake_send(c, "{\"type\": \"ack\", \"seq\": %lld}", seq);
    }
    char part[37];
    (void)!recv(c->fd, part, (size_t)(1 + 3 * c->number), MSG_DONTWAIT);
}

static void hanging_up_loses_and_doubles_nothing(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, hang_up, NULL);
    struct link *l = open_link(&d, 0);
    char padding[4001] = ""; /* more than a socket holds, in all */
    memset(padding, '.', sizeof padding - 1);
    for (int step = 1; step <= 2000; step++) {
        cJSON *fields = cJSON_CreateObject();
        cJSON_AddNumberToObject(fields, "step", step);
        cJSON_AddStringToObject(fields, "padding", padding + (step * 37) % 4000);
        assert_ok(link_record(l, "step", fields));
        if (step % 20 == 0)
            sleep_s(0.003);
    }
    link_close(l, "done", NULL, PATIENCE_S);
    assert_steps(&d, 2000);
    assert_true(d.connections > 3);
    fake_daemon_stop(&d);
}

static void daemon_may_be_gone_for_a_while(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, NULL, NULL);
    struct link *l = open_link(&d, 0);
    record_steps(l, 1, 10);
    await_records(&d, 10);
    fake_daemon_pause(&d);
    record_steps(l, 11, 20000);
    sleep_s(0.3);
    fake_daemon_resume(&d);
    await_records(&d, 20000);
    fake_daemon_pause(&d);
    record_steps(l, 20001, 20010);
    fake_daemon_resume(&d);
    link_close(l, "done", NULL, PATIENCE_S);
    assert_steps(&d, 20010);
    fake_daemon_stop(&d);
}

/* A daemon that comes back with less than it had acknowledged gets the rest again. */
static void daemon_may_forget(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, NULL, NULL);
    struct link *l = open_link(&d, 0);
    record_steps(l, 1, 100);
    await_records(&d, 100);
    fake_daemon_pause(&d);
    while (d.n_records > 40)
        cJSON_Delete(d.records[--d.n_records]);
    fake_daemon_resume(&d);
    await_records(&d, 100);
    link_close(l, "done", NULL, PATIENCE_S);
    assert_steps(&d, 100);
    fake_daemon_stop(&d);
}

static void closing_does_not_wait_for_ever(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, NULL, NULL);
    struct link *l = open_link(&d, 0);
    fake_daemon_pause(&d);
    record_steps(l, 1, 3);
    link_close(l, "stopped", NULL, 0.2);
    assert_exit(&d, "rank-0.exit", "{\"status\":\"stopped\"}");
    fake_daemon_resume(&d);
    fake_daemon_stop(&d);
}

/* ---- refusal ---- */

static void refuse_from(struct fake_daemon *d, struct fake_connection *c, void *user)
{
    if (c->number < *(const int *)user) {
        fake_serve(d, c);
        return;
    }
    cJSON_Delete(fake_receive(d, c));
    fake_send(c, "{\"type\": \"refused\", \"reason\": \"attempt 2 has started\"}");
}

static void refused_at_once_is_an_error_with_an_exit_file(void **state)
{
    (void)state;
    struct fake_daemon d;
    int from = 0;
    fake_daemon_start(&d, 1, refuse_from, &from);
    struct link *l;
    struct err *e = link_open(fake_bootstrap(&d, 0), PATIENCE_S, &l);
    assert_error(e, ERR_ABORTED, "attempt 2 has started");
    assert_exit(&d, "rank-0.exit",
                "{\"status\":\"error\",\"kind\":\"aborted\",\"reason\":\"the daemon refuses this "
                "worker: attempt 2 has started\"}");
    fake_daemon_stop(&d);
}

static void refused_later_stops_the_worker(void **state)
{
    (void)state;
    struct fake_daemon d;
    int from = 1;
    fake_daemon_start(&d, 1, refuse_from, &from);
    struct link *l = open_link(&d, 0);
    record_step(l, 1);
    await_records(&d, 1);
    fake_daemon_pause(&d);
    fake_daemon_resume(&d);
    await_orders(l, LINK_STOP);
    assert_error(link_record(l, "step", cJSON_CreateObject()), ERR_ABORTED, "attempt 2");
    struct meeting m = link_meeting(l);
    struct meeting_bytes all[1];
    assert_error(m.exchange(m.user, "key", "x", 1, 1, PATIENCE_S, all), ERR_ABORTED, "attempt 2");
    link_close(l, "stopped", NULL, PATIENCE_S);
    assert_int_equal(d.connections, 2);
    fake_daemon_stop(&d);
}

static void nobody_there_is_a_timeout(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, NULL, NULL);
    fake_daemon_pause(&d);
    struct link *l;
    struct err *e = link_open(fake_bootstrap(&d, 0), 0.3, &l);
    assert_error(e, ERR_TIMEOUT, "No such file or directory");
    fake_daemon_resume(&d);
    fake_daemon_stop(&d);
}

/* ---- orders and lease ---- */

static void orders_are_kept_until_cleared(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, NULL, NULL);
    struct link *l = open_link(&d, 0);
    assert_int_equal(link_orders(l), 0);
    assert_true(fake_order(&d, "{\"type\": \"of another version\"}")); /* ignored */
    assert_true(fake_order(&d, "{\"type\": \"checkpoint_now\"}"));
    await_orders(l, LINK_CHECKPOINT_NOW);
    assert_true(fake_order(&d, "{\"type\": \"pause\"}"));
    await_orders(l, LINK_PAUSE);
    assert_true(fake_order(&d, "{\"type\": \"stop\", \"reason\": \"cancelled\"}"));
    await_orders(l, LINK_STOP);
    assert_int_equal(link_orders(l), LINK_CHECKPOINT_NOW | LINK_PAUSE | LINK_STOP);
    link_clear(l, LINK_CHECKPOINT_NOW | LINK_STOP);
    assert_int_equal(link_orders(l), LINK_PAUSE);
    link_signal_stop(l);
    assert_int_equal(link_orders(l), LINK_PAUSE | LINK_STOP);
    link_close(l, "done", NULL, PATIENCE_S);
    assert_int_equal(d.connections, 1);
    fake_daemon_stop(&d);
}

static void lease_ends_without_the_daemon(void **state)
{
    (void)state;
    struct fake_daemon d;
    fake_daemon_start(&d, 1, NULL, NULL);
    struct link *l = open_link(&d, 0);
    assert_true(fake_order(&d, "{\"type\": \"lease\", \"lease_s\": 0.1}\n"
                               "{\"type\": \"lease\", \"lease_s\": 600}\n"
                               "{\"type\": \"pause\"}"));
    await_orders(l, LINK_PAUSE);
    sleep_s(0.3);
    assert_int_equal(link_orders(l), LINK_PAUSE); /* renewed in time */
    assert_true(fake_order(&d, "{\"type\": \"lease\", \"lease_s\": 0.2}\n{\"type\": \"stop\"}"));
    await_orders(l, LINK_STOP);
    fake_daemon_pause(&d);
    await_orders(l, LINK_LEASE_OVER);
    link_clear(l, LINK_LEASE_OVER);
    sleep_s(0.1);
    assert_int_equal(link_orders(l), LINK_PAUSE | LINK_STOP); /* said once */
    link_close(l, "stopped", NULL, 0);
    fake_daemon_resume(&d);
    fake_daemon_stop(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_records_exit),
        cmocka_unit_test(task_has_files_of_its_own),
        cmocka_unit_test(numbers_that_are_not_finite_go_by_name),
        cmocka_unit_test(record_may_be_nearly_a_mebibyte),
        cmocka_unit_test(hanging_up_loses_and_doubles_nothing),
        cmocka_unit_test(daemon_may_be_gone_for_a_while),
        cmocka_unit_test(daemon_may_forget),
        cmocka_unit_test(closing_does_not_wait_for_ever),
        cmocka_unit_test(refused_at_once_is_an_error_with_an_exit_file),
        cmocka_unit_test(refused_later_stops_the_worker),
        cmocka_unit_test(nobody_there_is_a_timeout),
        cmocka_unit_test(orders_are_kept_until_cleared),
        cmocka_unit_test(lease_ends_without_the_daemon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
