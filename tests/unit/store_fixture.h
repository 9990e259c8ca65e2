/* A database in a directory of its own, and a connection to it in the test's own thread, so that
 * assertions may stand beside entity functions. */
#ifndef TESTS_STORE_FIXTURE_H
#define TESTS_STORE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "store/sql.h"
#include "store/store.h"

/* The expression succeeds. */
#define OK(expression) fixture_ok(expression, #expression, __FILE__, __LINE__)
/* The expression fails with this kind, and its message has this text in it. */
#define FAILS(expression, kind, text)                                                              \
    fixture_fails(expression, kind, text, #expression, __FILE__, __LINE__)

static inline void fixture_ok(struct err *e, const char *what, const char *file, int line)
{
    if (!e)
        return;
    print_error("%s: %s\n", what, err_message(e));
    err_free(e);
    _fail(file, line);
}

static inline void fixture_fails(struct err *e, enum err_kind kind, const char *text,
                                 const char *what, const char *file, int line)
{
    bool right = e && err_kind(e) == kind && strstr(err_message(e), text);
    if (!right)
        print_error("%s: %s (%s) instead of %s with \"%s\"\n", what, e ? err_message(e) : "success",
                    e ? err_kind_name(err_kind(e)) : "none", err_kind_name(kind), text);
    err_free(e);
    if (!right)
        _fail(file, line);
}

struct fixture {
    char directory[64], path[80];
    struct store_tx tx;
};

static inline int fixture_directory(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    if (!f)
        return -1;
    strcpy(f->directory, "/tmp/dllmd-store-XXXXXX");
    if (!mkdtemp(f->directory))
        return -1;
    snprintf(f->path, sizeof f->path, "%s/dllmd.db", f->directory);
    *state = f;
    return 0;
}

static inline int fixture_connection(void **state)
{
    if (fixture_directory(state))
        return -1;
    struct fixture *f = *state;
    struct store *store;
    OK(store_open(f->path, NULL, &store));
    store_close(store);
    OK(store_connect(&f->tx, f->path, false));
    return 0;
}

static inline int fixture_remove(void **state)
{
    struct fixture *f = *state;
    if (f->tx.db)
        store_disconnect(&f->tx);
    static const char *const names[] = {"", "-wal", "-shm", "-journal"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[96];
        snprintf(path, sizeof path, "%s%s", f->path, names[i]);
        unlink(path);
    }
    int rc = rmdir(f->directory);
    free(f);
    return rc;
}

#endif
