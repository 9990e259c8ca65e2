/* What the files of the HTTP server share; others include api.h. */
#ifndef API_SERVER_H
#define API_SERVER_H

#include <microhttpd.h>
#include <stdbool.h>
#include <uv.h>

#include "api/async.h"
#include "api/control.h"

#include "api/patience.h"
#include "api/rate.h"
#include "api/tls.h"

struct stream;

struct api {
    uv_loop_t *loop;
    struct async *async;
    const struct api_control *control;
    struct MHD_Daemon *daemon;
    uv_poll_t poll;       /* MHD's epoll descriptor */
    uv_timer_t timer;     /* MHD's next timeout */
    uv_timer_t heartbeat; /* of the event streams */
    struct patience patience;
    uv_timer_cb on_timer;
    struct stream *streams; /* open event streams */
    int n_streams;
    int64_t requests_total;
    struct rate rate;
    struct tls *tls; /* NULL: plain HTTP */
    const char *scheme;
    bool auth_required;
    char **hosts;
    size_t host_count;
    char *backups;   /* directory */
    bool backing_up; /* a request is at it */
    bool resumed;    /* a connection, since MHD ran last */
    bool stopping;
    int closed; /* handles */
    char url[80];
};

/* A suspended connection goes on in the next turn of the loop. */
void server_resume(struct api *api, struct MHD_Connection *connection);

#endif
