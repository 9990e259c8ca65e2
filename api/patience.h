/* How long a client may take to say what it wants. MHD's own timeout counts from the last byte, so
 * a client that sends one now and then would hold its connection for ever, and some hundred of them
 * all that there are. Here a whole header has to come within some seconds, from the connection's
 * start or the end of the request before, and a whole body within a minute; else the connection is
 * cut. Loop thread only.
 */
#ifndef API_PATIENCE_H
#define API_PATIENCE_H

#include <microhttpd.h>
#include <uv.h>

struct caller;

struct patience {
    uv_timer_t timer;
    struct caller *callers; /* open connections */
};

void patience_open(struct patience *p, uv_loop_t *loop);
/* Once MHD has stopped. on_closed gets the timer, whose data is the struct patience. */
void patience_close(struct patience *p, uv_close_cb on_closed);

/* For MHD_OPTION_NOTIFY_CONNECTION, cls: the struct patience. */
void patience_connection(void *cls, struct MHD_Connection *connection, void **context,
                         enum MHD_ConnectionNotificationCode why);
/* The header is there, the body begins. */
void patience_header(struct MHD_Connection *connection);
/* All is there: the time is the server's. */
void patience_whole(struct MHD_Connection *connection);
/* The request is over, the next may come. */
void patience_over(struct MHD_Connection *connection);

#endif
