/* The two ways behind launch.h. Internal to launch*.c. */
#ifndef CONTROL_LAUNCH_WAYS_H
#define CONTROL_LAUNCH_WAYS_H

#include "daemon/control/launch.h"

#define LAUNCH_VARIABLES 3

/* What a worker's environment says about its share of the machine: LAUNCH_VARIABLES times
 * "NAME=value". False: no memory. Freed by the caller in any case. */
bool launch_variables(const struct launch *launch, char *out[LAUNCH_VARIABLES]);

struct err *launch_plain(const struct launch *launch, struct launched *out);
struct err *launch_unit(const struct launch *launch, struct launched *out);
/* Blocks. */
struct err *launch_unit_signal(const char *instance, int signal);

#endif
