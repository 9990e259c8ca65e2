/* A directory and those above it. */
#ifndef CONTROL_DIRECTORY_H
#define CONTROL_DIRECTORY_H

#include "daemon/base/err.h"

/* Makes what is missing of an absolute path, mode 0770 under the umask. */
struct err *directory_make(const char *path);

/* What lies at `path`, if anything, is called `path`.old-<time> from now on, durably. */
struct err *directory_set_aside(const char *path);

#endif
