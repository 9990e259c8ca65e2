#include "daemon/control/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define DESCRIPTORS 16384 /* two for each of 4096 processes, and what the rest needs */

static void work_nothing(uv_work_t *request)
{
    (void)request;
}

static void on_event(uv_poll_t *poll, int status, int events)
{
    (void)poll, (void)status, (void)events;
}

static void on_closed(uv_handle_t *handle)
{
    free(handle);
}

/* The highest descriptor that there may be is polled for a moment. */
static struct err *grow_table(uv_loop_t *loop)
{
    struct rlimit limit = {.rlim_cur = 1024};
    getrlimit(RLIMIT_NOFILE, &limit);
    int highest = limit.rlim_cur < DESCRIPTORS ? (int)limit.rlim_cur - 1 : DESCRIPTORS - 1;
    int fd = eventfd(0, EFD_CLOEXEC);
    int high = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, highest);
    uv_poll_t *poll = malloc(sizeof *poll);
    struct err *err = NULL;
    if (high < 0)
        err = err_errno(errno, "cannot make the descriptor %d", highest);
    else if (!poll || uv_poll_init(loop, poll, high) != 0)
        err = err_no_memory();
    if (err) {
        free(poll);
    } else {
        uv_poll_start(poll, UV_READABLE, on_event);
        uv_close((uv_handle_t *)poll, on_closed);
    }
    if (high >= 0)
        close(high);
    if (fd >= 0)
        close(fd);
    return err;
}

struct err *loop_open(uv_loop_t *loop)
{
    uv_work_t first;
    if (uv_loop_init(loop) != 0)
        return err_new(ERR_INTERNAL, "the event loop cannot be made");
    struct err *err = grow_table(loop);
    if (!err && uv_queue_work(loop, &first, work_nothing, NULL) != 0)
        err = err_new(ERR_INTERNAL, "the event loop's threads cannot be started");
    uv_run(loop, UV_RUN_DEFAULT);
    if (err)
        uv_loop_close(loop);
    return err;
}
