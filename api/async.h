/* Work that leaves the loop thread and comes back to it.
 *
 * The loop thread never calls SQLite and never waits for a disk. It hands a write to the store's
 * writer thread, or a read (or any blocking work) to libuv's thread pool, and gets the result in a
 * callback on the loop thread. An item is a part of the caller's own struct, so handing work over
 * allocates nothing and cannot fail; the struct lives until the callback, which always comes, once,
 * and never from inside the call that handed the work over.
 */
#ifndef API_ASYNC_H
#define API_ASYNC_H

#include <stdbool.h>
#include <uv.h>

#include "daemon/base/err.h"
#include "store/store.h"

struct async;

/* Runs on the loop thread; `err` (NULL: success) is owned by the callee. */
typedef void async_done_fn(void *arg, struct err *err);
typedef struct err *async_work_fn(void *arg);
typedef struct err *async_read_fn(struct store_tx *tx, void *arg);

struct async_item {
    struct async *async;
    struct async_item *next;
    void *arg;
    async_done_fn *done;
    async_work_fn *work;
    async_read_fn *read;
    struct err *err;
    bool refused; /* a write that was not even queued: the queue is full, try again */
    uv_work_t request;
};

struct err *async_open(uv_loop_t *loop, struct store *store, struct async **out);
/* Called on the loop thread after a round of callbacks in which a write was committed. */
void async_on_commit(struct async *a, void (*fn)(void *user), void *user);
/* `guard` is asked before each write. What it says (a sentence that lives until the next call;
 * NULL: nothing is wrong) is the write's error, ERR_IO, and nothing is written. */
void async_guard(struct async *a, const char *(*guard)(void *user), void *user);
/* Items handed over whose callback has not come yet. */
size_t async_pending(const struct async *a);
/* Nothing may be pending. The handle is closed by the next turn of the loop; `a` is freed then. */
void async_close(struct async *a);

/* Loop thread only. `fn` runs in the writer thread, see store_write(). */
void async_write(struct async *a, struct async_item *item, store_write_fn *fn, void *arg,
                 async_done_fn *done);
/* Loop thread only. `fn` runs in the pool, inside a read transaction. */
void async_read(struct async *a, struct async_item *item, async_read_fn *fn, void *arg,
                async_done_fn *done);
/* Loop thread only. `fn` runs in the pool. */
void async_work(struct async *a, struct async_item *item, async_work_fn *fn, void *arg,
                async_done_fn *done);

#endif
