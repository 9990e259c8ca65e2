/* The certificate that HTTPS shows, read from two PEM files, and read again while it serves.
 *
 * GnuTLS asks for the certificate at each handshake and gets copies of what was read last, so a new
 * one holds for the next connection and no connection is dropped. Files that cannot be used (a key
 * of another certificate, half a file) leave the certificate in place, with a warning.
 */
#ifndef API_TLS_H
#define API_TLS_H

#include <gnutls/abstract.h>
#include <uv.h>

#include "api/async.h"
#include "daemon/base/err.h"

struct tls;

/* Reads and checks the files; ERR_INVALID or ERR_IO names the file. They are then looked at every
 * few seconds on `loop`. One at a time in a process. The paths are copied. */
struct err *tls_open(uv_loop_t *loop, struct async *async, const char *certificate, const char *key,
                     struct tls **out);
/* Whether they are good: for --check-config. */
struct err *tls_check(const char *certificate, const char *key);
/* Reads them again, in the pool. NULL is allowed. */
void tls_reload(struct tls *tls);
/* Looks no more. NULL is allowed. */
void tls_stop(struct tls *tls);
/* Nothing may be pending in `async`. Freed by the loop's next turn. NULL is allowed. */
void tls_close(struct tls *tls);

/* For MHD_OPTION_HTTPS_CERT_CALLBACK2, while one is open; in the loop's thread. */
int tls_retrieve(gnutls_session_t session, const struct gnutls_cert_retr_st *info,
                 gnutls_pcert_st **certificates, unsigned *count, gnutls_ocsp_data_st **ocsp,
                 unsigned *ocsp_count, gnutls_privkey_t *key, unsigned *flags);

#endif
