/* The worker's end of the line to its daemon (docs/worker-protocol.md): bootstrap, connection with
 * reconnects, journal, meeting, orders, lease, exit file. One background thread owns the socket;
 * every function here may be called from any thread.
 */
#ifndef WORKER_LINK_H
#define WORKER_LINK_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/worker/comm/comm.h"

struct link;

enum link_order { LINK_CHECKPOINT_NOW = 1, LINK_PAUSE = 2, LINK_STOP = 4, LINK_LEASE_OVER = 8 };

struct link_identity {
    bool is_task;
    int64_t job, attempt, task;
    int rank;
    const char *directory;
};

/* Reads the bootstrap from descriptor `fd`, opens the journal (a torn last line is cut off), starts
 * the thread, connects and waits for the welcome, at most timeout_s. A failure after the bootstrap
 * leaves an exit file; a refusal is ERR_ABORTED. */
struct err *link_open(int fd, double timeout_s, struct link **out);
const struct link_identity *link_identity(const struct link *l);
/* The welcome message; owned by the link. */
const cJSON *link_welcome(const struct link *l);

/* Appends a record to the journal and queues it to be sent; takes ownership of `fields` (an object
 * with all but type, seq and time). Returns when the record is in the journal (written, not
 * synced): it survives the death of this process. Never blocks on the daemon; waits
 * for a disk that is full, some minutes at most. ERR_IO where the disk goes on refusing,
 * ERR_INVALID for more than 1 MiB, ERR_ABORTED once the daemon has refused this worker. */
struct err *link_record(struct link *l, const char *kind, cJSON *fields);

/* The primitive of every meeting, over this link. Valid while the link is. */
struct meeting link_meeting(struct link *l);

/* Bits of enum link_order given since the start; they stay set until link_clear. LINK_STOP also on
 * SIGTERM (link_signal_stop is async-signal-safe) and when the daemon refuses this worker. */
unsigned link_orders(const struct link *l);
void link_clear(struct link *l, unsigned orders);
void link_signal_stop(struct link *l);

/* Writes the exit file, waits up to timeout_s for the daemon to acknowledge all records, closes,
 * frees. `status`: "done", "stopped" or "error"; e (may be NULL) gives kind and reason and is not
 * consumed. */
void link_close(struct link *l, const char *status, const struct err *e, double timeout_s);

#endif
