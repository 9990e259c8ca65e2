/* The first line that a worker reads: who it is, and where its daemon listens. Internal to link/.
 */
#ifndef WORKER_BOOTSTRAP_H
#define WORKER_BOOTSTRAP_H

#include "daemon/worker/link/link_state.h"

/* Reads one line from `fd`, closes it, and fills identity, directory, socket_path, secret and name
 * of l, which are l's also after an error. */
struct err *bootstrap_read(int fd, double timeout_s, struct link *l);

#endif
