/* The event loop, with all that libuv will ever ask memory for.
 *
 * Where memory is short libuv returns an error, but for two things: the threads of its pool, and
 * its table of descriptors, which grows with the highest of them. There it ends the process. So
 * both are taken at the start, when nothing runs yet that could be lost. */
#ifndef CONTROL_LOOP_H
#define CONTROL_LOOP_H

#include <uv.h>

#include "daemon/base/err.h"

/* It is uv_loop_close()'s after success. */
struct err *loop_open(uv_loop_t *loop);

#endif
