/* What the tests of the worker's link share. */
#ifndef TESTS_LINK_HELPERS_H
#define TESTS_LINK_HELPERS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/base/err.h"
#include "daemon/base/file.h"
#include "daemon/worker/link/link.h"
#include "tests/support/fake_daemon.h"

#define PATIENCE_S 30.0

static inline void sleep_s(double s)
{
    struct timespec t = {(time_t)s, (long)((s - (double)(time_t)s) * 1e9)};
    nanosleep(&t, NULL);
}

static inline void assert_ok(struct err *e)
{
    if (e)
        fail_msg("%s", err_message(e));
}

/* Consumes e. */
static inline void assert_error(struct err *e, enum err_kind kind, const char *part)
{
    assert_non_null(e);
    if (err_kind(e) != kind || !strstr(err_message(e), part))
        fail_msg("not %s with \"%s\": %s: %s", err_kind_name(kind), part,
                 err_kind_name(err_kind(e)), err_message(e));
    err_free(e);
}

static inline struct link *open_link(struct fake_daemon *d, int rank)
{
    struct link *l;
    assert_ok(link_open(fake_bootstrap(d, rank), PATIENCE_S, &l));
    return l;
}

static inline void record_step(struct link *l, int step)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "step", step);
    assert_ok(link_record(l, "step", fields));
}

static inline void record_steps(struct link *l, int first, int last)
{
    for (int step = first; step <= last; step++)
        record_step(l, step);
}

static inline void await_records(struct fake_daemon *d, int64_t n)
{
    for (double waited_s = 0; fake_records(d) < n && waited_s < PATIENCE_S; waited_s += 0.01)
        sleep_s(0.01);
    assert_int_equal(fake_records(d), n);
}

static inline void await_orders(struct link *l, unsigned orders)
{
    for (double waited_s = 0; (link_orders(l) & orders) != orders && waited_s < PATIENCE_S;
         waited_s += 0.01)
        sleep_s(0.01);
    assert_int_equal(link_orders(l) & orders, orders);
}

/* The daemon holds steps 1 .. n in records 1 .. n. */
static inline void assert_steps(struct fake_daemon *d, int64_t n)
{
    assert_int_equal(fake_records(d), n);
    for (int64_t i = 0; i < n; i++) {
        const cJSON *step = cJSON_GetObjectItemCaseSensitive(d->records[i], "step");
        assert_true(cJSON_IsNumber(step) && step->valueint == i + 1);
    }
}

static inline char *read_text(const struct fake_daemon *d, const char *name)
{
    char path[256], *text;
    size_t length;
    snprintf(path, sizeof path, "%s/%s", d->directory, name);
    assert_ok(file_read(path, 1 << 24, &text, &length));
    return text;
}

static inline void write_text(const struct fake_daemon *d, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", d->directory, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static inline void assert_exit(const struct fake_daemon *d, const char *name, const char *want)
{
    char *text = read_text(d, name);
    assert_string_equal(text, want);
    free(text);
}

#endif
