/* The two threads that everything hangs on are the loop and the database's writer. A timer of the
 * loop sends the writer a write that writes nothing; when the answer is back on the loop, both have
 * shown that they run, and only then is systemd told. So a loop that spins and a writer that hangs
 * end the same way: systemd ends this process and starts another one.
 */
#include "daemon/control/watchdog.h"

#include <stdlib.h>
#include <systemd/sd-daemon.h>

struct watchdog {
    struct control *control;
    uv_timer_t timer;
    struct async_item item;
    bool pending;
};

static struct err *write_nothing(struct store_tx *tx, void *arg)
{
    (void)tx, (void)arg;
    return NULL;
}

static void after_nothing(void *arg, struct err *err)
{
    struct watchdog *w = arg;
    w->pending = false;
    /* An error is an answer: a full disk is not cured by another daemon. But what was not even
     * queued has not been at the writer. */
    if (!w->item.refused)
        sd_notify(0, "WATCHDOG=1");
    err_free(err);
}

static void on_timer(uv_timer_t *timer)
{
    struct watchdog *w = timer->data;
    if (w->pending)
        return;
    w->pending = true;
    async_write(w->control->async, &w->item, write_nothing, w, after_nothing);
}

struct err *watchdog_open(struct control *c)
{
    uint64_t usec;
    if (sd_watchdog_enabled(0, &usec) <= 0)
        return NULL;
    struct watchdog *w = calloc(1, sizeof *w);
    if (!w)
        return err_no_memory();
    w->control = c;
    w->timer.data = w;
    uv_timer_init(c->loop, &w->timer);
    uv_timer_start(&w->timer, on_timer, usec / 4000, usec / 4000);
    c->watchdog = w;
    return NULL;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle->data);
}

void watchdog_close(struct control *c)
{
    if (c->watchdog)
        uv_close((uv_handle_t *)&c->watchdog->timer, on_closed);
    c->watchdog = NULL;
}
