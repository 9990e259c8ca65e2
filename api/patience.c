#include "api/patience.h"

#include <stdlib.h>
#include <sys/socket.h>

#include "daemon/base/clock.h"

#define HEADER_S 15
#define BODY_S 60
#define LOOK_MS 1000

struct caller {
    struct caller *next, **link; /* *link is this one */
    int fd;
    double until_s; /* 0: no end */
};

static void on_look(uv_timer_t *timer)
{
    const struct patience *p = timer->data;
    double now_s = clock_s();
    for (struct caller *c = p->callers; c; c = c->next)
        if (c->until_s && now_s > c->until_s) {
            shutdown(c->fd, SHUT_RDWR); /* MHD reads the end, and closes */
            c->until_s = 0;
        }
}

void patience_open(struct patience *p, uv_loop_t *loop)
{
    uv_timer_init(loop, &p->timer);
    p->timer.data = p;
    uv_timer_start(&p->timer, on_look, LOOK_MS, LOOK_MS);
}

void patience_close(struct patience *p, uv_close_cb on_closed)
{
    uv_close((uv_handle_t *)&p->timer, on_closed);
}

void patience_connection(void *cls, struct MHD_Connection *connection, void **context,
                         enum MHD_ConnectionNotificationCode why)
{
    struct patience *p = cls;
    struct caller *c = *context;
    if (why == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
        c = info ? calloc(1, sizeof *c) : NULL;
        *context = c;
        if (!c)
            return; /* MHD's own timeout is left */
        *c = (struct caller){.next = p->callers,
                             .link = &p->callers,
                             .fd = info->connect_fd,
                             .until_s = clock_s() + HEADER_S};
        if (c->next)
            c->next->link = &c->next;
        p->callers = c;
    } else if (c) {
        *c->link = c->next;
        if (c->next)
            c->next->link = c->link;
        free(c);
        *context = NULL;
    }
}

static void set(struct MHD_Connection *connection, double until_s)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    struct caller *c = info ? info->socket_context : NULL;
    if (c)
        c->until_s = until_s;
}

void patience_header(struct MHD_Connection *connection)
{
    set(connection, clock_s() + BODY_S);
}

void patience_whole(struct MHD_Connection *connection)
{
    set(connection, 0);
}

void patience_over(struct MHD_Connection *connection)
{
    set(connection, clock_s() + HEADER_S);
}
