/* The HTTP face of dllmd: libmicrohttpd, polled by the daemon's event loop.
 *
 * Everything but reads of the database and other blocking work happens on the loop thread.
 */
#ifndef API_API_H
#define API_API_H

#include <uv.h>

#include "api/async.h"
#include "api/control.h"
#include "daemon/base/err.h"

struct api;

struct api_options {
    const char *address; /* numeric IPv4 or IPv6 address */
    int port;            /* 0: any free one, see api_url() */
};

/* Listens and serves. `async` and what `control` points to outlive the API. */
struct err *api_open(uv_loop_t *loop, struct async *async, const struct api_control *control,
                     const struct api_options *options, struct api **out);
/* "http://127.0.0.1:8470", owned by the API. */
const char *api_url(const struct api *api);
/* Something was committed: event streams look for news. */
void api_committed(struct api *api);
/* Takes no further connection or request; streams end. */
void api_stop(struct api *api);
/* After api_stop() and with nothing pending in `async`: closes connections, frees. The loop must
 * turn once more for the handles. */
void api_close(struct api *api);

#endif
