/* A rank's journal: one JSON record a line, line n holding record n, so that it can be sent again
 * from any record on without an index in memory. Internal to link/. The caller serializes appends
 * and everything that changes a journal; reading what lies before `bytes` may go on beside them. */
#ifndef WORKER_JOURNAL_H
#define WORKER_JOURNAL_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/err.h"

/* With its newline, a record as any message (docs/worker-protocol.md). */
#define LINE_BYTES ((size_t)1 << 20)

struct journal {
    char *path; /* owned */
    int fd;
    int64_t last_seq;
    off_t bytes;
    bool torn; /* a write failed half way; what lies beyond `bytes` is to be cut off */
};

/* Records up to `seq` end at `offset`. */
struct journal_place {
    int64_t seq;
    off_t offset;
};

/* Makes the file if there is none; cuts off a last line without its newline. ERR_INVALID where the
 * last record is not the one that its line number says. */
struct err *journal_open(const char *path, struct journal *out);
void journal_close(struct journal *j);
/* `line` is record last_seq + 1 with its newline; written with one write(2), or not at all. */
struct err *journal_append(struct journal *j, const char *line, size_t bytes);
/* Moves `place` to the end of record `seq`, at most last_seq. */
struct err *journal_seek(const struct journal *j, int64_t seq, struct journal_place *place);
/* Reads whole lines from `offset` to at most `end` into `to` [LINE_BYTES]. */
struct err *journal_read(const struct journal *j, off_t offset, off_t end, char *to, size_t *bytes);

#endif
