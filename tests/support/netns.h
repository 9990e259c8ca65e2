/* A network of the test's own, in which every byte on an interface is the test's. */
#ifndef TESTS_NETNS_H
#define TESTS_NETNS_H

#include <stdint.h>

#include "daemon/base/err.h"

/* Moves this process, which must have one thread, into a fresh network namespace with its loopback
 * interface up; processes forked later are in it, too. As root, or where users may make user
 * namespaces; ERR_IO where neither is so: a test then skips with the message. */
struct err *netns_enter(void);

/* Bytes that the kernel counts as received by an interface ("lo": what was sent, once), headers
 * included. */
struct err *netns_received_bytes(const char *interface, int64_t *out);

#endif
