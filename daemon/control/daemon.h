/* The daemon from its start to its end. */
#ifndef CONTROL_DAEMON_H
#define CONTROL_DAEMON_H

#include "daemon/base/err.h"
#include "daemon/control/config.h"

/* Serves until SIGTERM or SIGINT. Workers outlive it. */
struct err *daemon_run(const struct config *config);

#endif
