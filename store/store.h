/* The database: one SQLite file in WAL mode, one writer thread, a few read connections.
 *
 * Writes. A caller submits a function; the writer thread runs as many as are waiting in one
 * transaction, each inside its own savepoint, commits, and then calls their done callbacks. What a
 * done callback without error reports is on disk (synchronous=FULL). The queue is bounded: when it
 * is full, store_write() refuses with ERR_CONFLICT and nothing was queued; an HTTP request answers
 * "try again", a worker's record stays unacknowledged and comes again.
 *
 * Reads. store_read_begin() lends a read connection with a snapshot; it may block on the disk, so
 * it belongs into libuv's thread pool, never on the loop thread.
 *
 * Memory. Rows and texts that entity functions return live in the transaction: until
 * store_read_end(), or until the write function returns. Nothing of a row is freed by the caller;
 * what must live longer is copied. A text that is NULL in the database is a NULL pointer.
 *
 * Entities. Each has a header (jobs.h, events.h, …) whose functions take a `struct store_tx`. All
 * of them can be called in a write function; those that take `const` rows or say "writes" fail
 * with ERR_INTERNAL in a read. Text is UTF-8, columns named *_json hold valid JSON (checked by the
 * database), times are seconds since 1970 UTC, and a time, id or number of 0 means "none" where
 * the header says so.
 *
 * Errors. ERR_NOT_FOUND, ERR_CONFLICT and ERR_INVALID speak of the row; ERR_IO says what the disk
 * refused and what to do (the store goes on when space returns); ERR_TIMEOUT: another process
 * holds the database locked; ERR_INTERNAL: a constraint that callers should have kept.
 */
#ifndef STORE_STORE_H
#define STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

struct store;
struct store_tx;

struct store_options {
    size_t queue_limit; /* waiting writes; 0: 4096 */
    size_t group_limit; /* writes in one transaction; 0: 512 */
    size_t readers;     /* read connections; 0: 4 */
};

/* Opens or creates the file (its directory must exist, the file is made with mode 0600), brings
 * its schema up to date and starts the writer thread. `options` may be NULL. A database of a newer
 * version, a foreign or a damaged file is refused and left as it is. */
struct err *store_open(const char *path, const struct store_options *options, struct store **store);
/* Runs what is queued, commits, calls the callbacks, joins the writer, closes the connections.
 * No read may be open and no thread may submit any more. NULL is allowed. */
void store_close(struct store *store);

/* Runs in the writer thread, inside a savepoint: an error undoes what it wrote and nothing else.
 * It may run more than once (a transaction that the disk refused is tried again function by
 * function), so it sets its results in `arg` anew each time and touches nothing else outside. */
typedef struct err *store_write_fn(struct store_tx *tx, void *arg);
/* Runs in the writer thread after the commit, or with the error (owned by the callee) that undid
 * the write. Must not block. Callbacks come in the order of submission. */
typedef void store_done_fn(void *user, struct err *err);

/* Queues fn(tx, arg). `arg` must live until `done` is called. Any thread. With `done` NULL an
 * error is logged. Refused (ERR_CONFLICT) when the queue is full. */
struct err *store_write(struct store *store, store_write_fn *fn, void *arg, store_done_fn *done,
                        void *user);
/* The blocking form, for start-up and tests: waits for room and for the commit. Never from the
 * writer thread. */
struct err *store_write_wait(struct store *store, store_write_fn *fn, void *arg);

/* Waits for a free read connection. The snapshot sees every write whose done callback was called
 * before, or began to be called. */
struct err *store_read_begin(struct store *store, struct store_tx **tx);
/* NULL is allowed. */
void store_read_end(struct store_tx *tx);

/* Seconds since 1970 UTC. */
double store_now(void);

/* A list is served in pages by id. Ids only grow and are never used twice, so a page is stable
 * under inserts. */
struct store_page {
    int64_t cursor;    /* the last id of the page before; 0: from the beginning */
    int limit;         /* rows at most, 1 or more */
    bool oldest_first; /* otherwise newest first */
};

#endif
