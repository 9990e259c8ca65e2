/* The writer thread and the pool of readers.
 *
 * The writer takes what is waiting as one group: BEGIN IMMEDIATE, each write function inside a
 * savepoint, COMMIT, callbacks. While it waits for the disk the next group gathers, so a busy
 * service pays one fsync for many writes and an idle one commits at once.
 *
 * A disk error may cost SQLite the whole transaction, and a failed COMMIT always does. The group is
 * then run again one function at a time, so that a write that alone is too much for the disk does
 * not take its neighbours with it. */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "store/migrate.h"
#include "store/sql.h"

#define QUEUE_LIMIT 4096
#define GROUP_LIMIT 512
#define READERS 4

struct write {
    store_write_fn *fn;
    void *arg;
    store_done_fn *done;
    void *user;
    struct err *err;
};

struct store {
    char *path;
    struct store_tx writer_tx;
    struct store_tx *readers;
    size_t reader_count;

    pthread_t writer;
    bool writer_runs;
    pthread_mutex_t lock; /* over all below */
    pthread_cond_t changed_queue, room, reader_free;
    struct write *queue; /* a ring */
    size_t queue_limit, queue_first, queue_count;
    bool closing;
    struct store_tx *free_readers;

    struct write *group; /* the writer's own */
    size_t group_limit;
};

/* ---- one group ---- */

/* `lost`: the transaction is gone, or must not be committed. */
static struct err *run_write(struct store_tx *tx, const struct write *w, bool *lost)
{
    *lost = true;
    TRY(store_exec(tx, "begin a write", "SAVEPOINT write"));
    struct err *e = w->fn(tx, w->arg), *e2 = NULL;
    store_forget(tx);
    if (e && !sqlite3_get_autocommit(tx->db))
        e2 = store_exec(tx, "undo a write", "ROLLBACK TO write");
    if (!e2 && !sqlite3_get_autocommit(tx->db)) {
        e2 = store_exec(tx, "end a write", "RELEASE write");
        *lost = e2;
    }
    if (!e)
        return e2;
    err_free(e2);
    return e;
}

/* Also when a rollback failed before, for lack of memory. */
static struct err *ensure_no_transaction(struct store_tx *tx)
{
    return sqlite3_get_autocommit(tx->db) ? NULL : store_exec(tx, "undo a transaction", "ROLLBACK");
}

static struct err *copy_error(const struct err *e)
{
    return err_new(err_kind(e), "%s", err_message(e));
}

static void clear_errors(struct write *writes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        err_free(writes[i].err);
        writes[i].err = NULL;
    }
}

/* Fills in the errors of all writes. */
static void run_group(struct store_tx *tx, struct write *writes, size_t count)
{
    clear_errors(writes, count);
    struct err *e = ensure_no_transaction(tx);
    if (!e)
        e = store_exec(tx, "begin a group of writes", "BEGIN IMMEDIATE");
    if (e) {
        for (size_t i = 0; i < count; i++)
            writes[i].err = copy_error(e);
        err_free(e);
        return;
    }
    bool lost = false;
    for (size_t i = 0; i < count && !lost; i++)
        writes[i].err = run_write(tx, &writes[i], &lost);
    if (!lost) {
        e = store_exec(tx, "commit a group of writes", "COMMIT");
        lost = e;
    }
    if (lost)
        err_free(ensure_no_transaction(tx));
    if (lost && count > 1) {
        for (size_t i = 0; i < count; i++)
            run_group(tx, &writes[i], 1);
    } else if (lost && !writes[0].err) {
        writes[0].err = e ? e : err_new(ERR_IO, "the database gave up a transaction");
        e = NULL;
    }
    err_free(e);
}

static void finish(struct write *w)
{
    if (w->done)
        w->done(w->user, w->err);
    else if (w->err) {
        log_error("a write to the database failed: %s", err_message(w->err));
        err_free(w->err);
    }
    w->err = NULL;
}

static void *writer_main(void *p)
{
    struct store *s = p;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (!s->queue_count && !s->closing)
            pthread_cond_wait(&s->changed_queue, &s->lock);
        size_t count = 0;
        while (s->queue_count && count < s->group_limit) {
            s->group[count++] = s->queue[s->queue_first];
            s->queue_first = (s->queue_first + 1) % s->queue_limit;
            s->queue_count--;
        }
        pthread_cond_broadcast(&s->room);
        pthread_mutex_unlock(&s->lock);
        if (!count)
            return NULL;
        run_group(&s->writer_tx, s->group, count);
        for (size_t i = 0; i < count; i++)
            finish(&s->group[i]);
    }
}

/* ---- submitting ---- */

/* Called with the lock and with room in the queue. */
static void enqueue(struct store *s, const struct write *w)
{
    s->queue[(s->queue_first + s->queue_count++) % s->queue_limit] = *w;
    pthread_cond_signal(&s->changed_queue);
}

struct err *store_write(struct store *s, store_write_fn *fn, void *arg, store_done_fn *done,
                        void *user)
{
    pthread_mutex_lock(&s->lock);
    bool room = s->queue_count < s->queue_limit;
    if (room)
        enqueue(s, &(struct write){.fn = fn, .arg = arg, .done = done, .user = user});
    pthread_mutex_unlock(&s->lock);
    if (!room)
        return err_new(ERR_CONFLICT,
                       "the database is busy: %zu writes are waiting; try again later",
                       s->queue_limit);
    return NULL;
}

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool is_done;
    struct err *err;
};

static void wake(void *user, struct err *e)
{
    struct waiter *w = user;
    pthread_mutex_lock(&w->lock);
    w->err = e;
    w->is_done = true;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

struct err *store_write_wait(struct store *s, store_write_fn *fn, void *arg)
{
    struct waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, NULL};
    pthread_mutex_lock(&s->lock);
    while (s->queue_count == s->queue_limit)
        pthread_cond_wait(&s->room, &s->lock);
    enqueue(s, &(struct write){.fn = fn, .arg = arg, .done = wake, .user = &w});
    pthread_mutex_unlock(&s->lock);

    pthread_mutex_lock(&w.lock);
    while (!w.is_done)
        pthread_cond_wait(&w.done, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_mutex_destroy(&w.lock);
    pthread_cond_destroy(&w.done);
    return w.err;
}

/* ---- reading ---- */

static void give_back(struct store_tx *tx)
{
    struct store *s = tx->store;
    pthread_mutex_lock(&s->lock);
    tx->next_free = s->free_readers;
    s->free_readers = tx;
    pthread_cond_signal(&s->reader_free);
    pthread_mutex_unlock(&s->lock);
}

struct err *store_read_begin(struct store *s, struct store_tx **tx)
{
    *tx = NULL;
    pthread_mutex_lock(&s->lock);
    while (!s->free_readers)
        pthread_cond_wait(&s->reader_free, &s->lock);
    struct store_tx *reader = s->free_readers;
    s->free_readers = reader->next_free;
    pthread_mutex_unlock(&s->lock);
    struct err *e = ensure_no_transaction(reader);
    if (!e)
        e = store_exec(reader, "begin a read", "BEGIN");
    if (e)
        give_back(reader);
    else
        *tx = reader;
    return e;
}

void store_read_end(struct store_tx *tx)
{
    if (!tx)
        return;
    err_free(ensure_no_transaction(tx));
    store_forget(tx);
    give_back(tx);
}

/* ---- opening and closing ---- */

/* SQLite would make the file readable for everybody. */
static struct err *make_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(errno, "cannot open or make the database %s", path);
    close(fd);
    return NULL;
}

static struct err *use_wal(struct store_tx *tx)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "turn on the write-ahead log", "PRAGMA journal_mode = WAL"));
    const char *mode = store_next(&rows) ? store_text(&rows, 0) : NULL;
    TRY(store_finish(&rows));
    bool on = mode && !strcmp(mode, "wal");
    store_forget(tx);
    if (!on)
        return err_new(ERR_IO,
                       "the file system of the database %s cannot share memory between processes, "
                       "which its write-ahead log needs; put it on a local disk",
                       tx->path);
    return NULL;
}

static struct err *connect_all(struct store *s)
{
    TRY(store_probe(s->path, &store_schema));
    TRY(make_file(s->path));
    TRY(store_connect(&s->writer_tx, s->path, false));
    TRY(use_wal(&s->writer_tx));
    TRY(store_migrate(&s->writer_tx, &store_schema));
    for (size_t i = 0; i < s->reader_count; i++) {
        TRY(store_connect(&s->readers[i], s->path, true));
        s->readers[i].store = s;
        s->readers[i].next_free = s->free_readers;
        s->free_readers = &s->readers[i];
    }
    return NULL;
}

struct err *store_open(const char *path, const struct store_options *options, struct store **store)
{
    static const struct store_options defaults;
    if (!options)
        options = &defaults;
    *store = NULL;
    struct store *s = calloc(1, sizeof *s);
    if (!s)
        return err_no_memory();
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed_queue, NULL);
    pthread_cond_init(&s->room, NULL);
    pthread_cond_init(&s->reader_free, NULL);
    s->queue_limit = options->queue_limit ? options->queue_limit : QUEUE_LIMIT;
    s->group_limit = options->group_limit ? options->group_limit : GROUP_LIMIT;
    s->reader_count = options->readers ? options->readers : READERS;
    s->path = strdup(path);
    s->queue = calloc(s->queue_limit, sizeof *s->queue);
    s->group = calloc(s->group_limit, sizeof *s->group);
    s->readers = calloc(s->reader_count, sizeof *s->readers);
    struct err *e = NULL;
    if (!s->path || !s->queue || !s->group || !s->readers)
        e = err_no_memory();
    if (!e)
        e = connect_all(s);
    if (!e) {
        int errnum = pthread_create(&s->writer, NULL, writer_main, s);
        s->writer_runs = errnum == 0;
        if (errnum)
            e = err_errno(errnum, "cannot start the database's writer thread");
    }
    if (e) {
        store_close(s);
        return e;
    }
    *store = s;
    return NULL;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_signal(&s->changed_queue);
    pthread_mutex_unlock(&s->lock);
    if (s->writer_runs)
        pthread_join(s->writer, NULL);
    for (size_t i = 0; s->readers && i < s->reader_count; i++)
        store_disconnect(&s->readers[i]);
    store_disconnect(&s->writer_tx); /* the last one out folds the log into the database */
    pthread_cond_destroy(&s->changed_queue);
    pthread_cond_destroy(&s->room);
    pthread_cond_destroy(&s->reader_free);
    pthread_mutex_destroy(&s->lock);
    free(s->readers);
    free(s->group);
    free(s->queue);
    free(s->path);
    free(s);
}

double store_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
