/* The daemon from its start to its end. */
#ifndef CONTROL_DAEMON_H
#define CONTROL_DAEMON_H

#include "api/api.h"
#include "daemon/base/err.h"
#include "daemon/control/config.h"

/* Serves until SIGTERM or SIGINT. Workers outlive it. */
struct err *daemon_run(const struct config *config);

/* Makes a token of the role admin in the database, whether a daemon serves it or not. */
struct err *daemon_create_admin_token(const struct config *config, char token[API_TOKEN_BYTES],
                                      char name[API_TOKEN_BYTES]);

#endif
