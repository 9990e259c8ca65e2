/* The HTTP face of dllmd: libmicrohttpd, polled by the daemon's event loop.
 *
 * Everything but reads of the database and other blocking work happens on the loop thread.
 */
#ifndef API_API_H
#define API_API_H

#include <stdbool.h>
#include <stddef.h>
#include <uv.h>

#include "api/async.h"
#include "api/control.h"
#include "daemon/base/err.h"

struct api;

struct api_options {
    const char *address; /* numeric IPv4 or IPv6 address */
    int port;            /* 0: any free one, see api_url() */
    bool insecure;       /* an address that is not loopback without TLS and tokens */
    bool auth;           /* asks for tokens on loopback, too, or in spite of `insecure` */
    const char *tls_certificate, *tls_key; /* PEM files; NULL: plain HTTP */
    const char *const *hosts;              /* names under which it is known, besides addresses */
    size_t host_count;
    double requests_per_s;         /* of one address; 0: no limit */
    const char *backups_directory; /* made when the first backup is */
};

/* ERR_INVALID: an address that is not loopback needs TLS. Listens and serves. `async` and what
 * `control` points to outlive the API. */
struct err *api_open(uv_loop_t *loop, struct async *async, const struct api_control *control,
                     const struct api_options *options, struct api **out);
/* Reads the certificate and its key again. They are read when they change, anyway. */
void api_reload(struct api *api);
/* "http://127.0.0.1:8470", owned by the API. */
const char *api_url(const struct api *api);
/* Something was committed: event streams look for news. */
void api_committed(struct api *api);
/* Takes no further connection or request; streams end. */
void api_stop(struct api *api);
/* After api_stop() and with nothing pending in `async`: closes connections, frees. The loop must
 * turn once more for the handles. */
void api_close(struct api *api);

#define API_TOKEN_BYTES 64

/* Makes a token of the role admin, whatever there is. Blocks. Both texts end with NUL. */
struct err *api_create_admin_token(struct store *store, char token[API_TOKEN_BYTES],
                                   char name[API_TOKEN_BYTES]);
/* Whether the files can be served: ERR_INVALID or ERR_IO names the one that cannot. */
struct err *api_check_tls(const char *certificate, const char *key);
/* A numeric address that only this machine reaches. */
bool api_is_loopback(const char *address);

#endif
