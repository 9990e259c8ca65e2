#include "api/async.h"

#include <stdlib.h>

struct async {
    uv_async_t wake;
    uv_loop_t *loop;
    struct store *store;
    uv_mutex_t lock;
    struct async_item *first, **last; /* finished writes, in order; under the lock */
    size_t pending;                   /* loop thread only */
    void (*on_commit)(void *user);
    void *user;
    const char *(*guard)(void *user);
    void *guard_user;
};

static void finish(struct async_item *item)
{
    struct err *err = item->err;
    item->err = NULL;
    item->async->pending--;
    item->done(item->arg, err);
}

static void on_wake(uv_async_t *handle)
{
    struct async *a = handle->data;
    uv_mutex_lock(&a->lock);
    struct async_item *item = a->first;
    a->first = NULL;
    a->last = &a->first;
    uv_mutex_unlock(&a->lock);
    bool committed = false;
    while (item) {
        struct async_item *next = item->next; /* done may free the item */
        committed = committed || !item->err;
        finish(item);
        item = next;
    }
    if (committed && a->on_commit)
        a->on_commit(a->user);
}

struct err *async_open(uv_loop_t *loop, struct store *store, struct async **out)
{
    struct async *a = calloc(1, sizeof *a);
    if (!a)
        return err_no_memory();
    a->loop = loop;
    a->store = store;
    a->last = &a->first;
    int rc = uv_mutex_init(&a->lock);
    if (rc == 0 && (rc = uv_async_init(loop, &a->wake, on_wake)) != 0)
        uv_mutex_destroy(&a->lock);
    if (rc != 0) {
        free(a);
        return err_new(ERR_INTERNAL, "the event loop cannot be woken: %s", uv_strerror(rc));
    }
    a->wake.data = a;
    *out = a;
    return NULL;
}

void async_on_commit(struct async *a, void (*fn)(void *user), void *user)
{
    a->on_commit = fn;
    a->user = user;
}

void async_guard(struct async *a, const char *(*guard)(void *user), void *user)
{
    a->guard = guard;
    a->guard_user = user;
}

size_t async_pending(const struct async *a)
{
    return a->pending;
}

static void on_closed(uv_handle_t *handle)
{
    struct async *a = handle->data;
    uv_mutex_destroy(&a->lock);
    free(a);
}

void async_close(struct async *a)
{
    if (a)
        uv_close((uv_handle_t *)&a->wake, on_closed);
}

/* Any thread: the item's callback is due. */
static void post(struct async_item *item)
{
    struct async *a = item->async;
    uv_mutex_lock(&a->lock);
    item->next = NULL;
    *a->last = item;
    a->last = &item->next;
    uv_async_send(&a->wake); /* under the lock: with its last item gone, `a` may be closed */
    uv_mutex_unlock(&a->lock);
}

static void prepare(struct async *a, struct async_item *item, void *arg, async_done_fn *done)
{
    *item = (struct async_item){.async = a, .arg = arg, .done = done};
    a->pending++;
}

static void on_written(void *user, struct err *err)
{
    struct async_item *item = user;
    item->err = err;
    post(item);
}

void async_write(struct async *a, struct async_item *item, store_write_fn *fn, void *arg,
                 async_done_fn *done)
{
    prepare(a, item, arg, done);
    const char *wrong = a->guard ? a->guard(a->guard_user) : NULL;
    if (wrong) {
        item->err = err_new(ERR_IO, "%s", wrong);
        post(item);
        return;
    }
    struct err *err = store_write(a->store, fn, arg, on_written, item);
    if (err) {
        item->refused = true;
        item->err = err;
        post(item);
    }
}

static void in_pool(uv_work_t *request)
{
    struct async_item *item = request->data;
    if (item->work) {
        item->err = item->work(item->arg);
        return;
    }
    struct store_tx *tx = NULL;
    item->err = store_read_begin(item->async->store, &tx);
    if (!item->err)
        item->err = item->read(tx, item->arg);
    store_read_end(tx);
}

static void after_pool(uv_work_t *request, int status)
{
    (void)status; /* work is never cancelled */
    finish(request->data);
}

static void queue(struct async *a, struct async_item *item)
{
    item->request.data = item;
    uv_queue_work(a->loop, &item->request, in_pool, after_pool);
}

void async_read(struct async *a, struct async_item *item, async_read_fn *fn, void *arg,
                async_done_fn *done)
{
    prepare(a, item, arg, done);
    item->read = fn;
    queue(a, item);
}

void async_work(struct async *a, struct async_item *item, async_work_fn *fn, void *arg,
                async_done_fn *done)
{
    prepare(a, item, arg, done);
    item->work = fn;
    queue(a, item);
}
