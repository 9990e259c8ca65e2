#include "daemon/worker/link/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/json.h"

#define BLOCK_BYTES ((size_t)1 << 16)

static struct err *read_at(const struct journal *j, off_t offset, char *to, size_t bytes,
                           size_t *got)
{
    ssize_t n;
    do
        n = pread(j->fd, to, bytes, offset);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_errno(errno, "cannot read journal %s", j->path);
    *got = (size_t)n;
    return NULL;
}

/* Moves `place` over whole lines until `seq`, or until the last one. before: where the last line
 * that was passed begins. */
static struct err *walk(const struct journal *j, int64_t seq, struct journal_place *place,
                        off_t *before)
{
    char block[BLOCK_BYTES];
    for (off_t at = place->offset; place->seq < seq;) {
        size_t got;
        TRY(read_at(j, at, block, sizeof block, &got));
        if (!got)
            break;
        char *from = block, *newline;
        while (place->seq < seq &&
               (newline = memchr(from, '\n', (size_t)(block + got - from))) != NULL) {
            from = newline + 1;
            *before = place->offset;
            *place = (struct journal_place){place->seq + 1, at + (from - block)};
        }
        at += (off_t)got;
    }
    return NULL;
}

/* The record of the last line must be the one that its number says. */
static struct err *check_last(const struct journal *j, off_t begin)
{
    size_t bytes = (size_t)(j->bytes - begin), got = 0;
    if (bytes > LINE_BYTES)
        return err_new(ERR_INVALID, "journal %s: line %" PRId64 " is longer than a record may be",
                       j->path, j->last_seq);
    char *line = malloc(bytes);
    if (!line)
        return err_no_memory();
    cJSON *record = NULL;
    struct err *e = read_at(j, begin, line, bytes, &got);
    if (!e)
        e = json_parse(line, got, &record);
    free(line);
    if (e)
        return err_wrap(e, "journal %s: line %" PRId64, j->path, j->last_seq);
    const cJSON *seq = cJSON_GetObjectItemCaseSensitive(record, "seq");
    if (!cJSON_IsNumber(seq) || seq->valuedouble != (double)j->last_seq)
        e = err_new(ERR_INVALID, "journal %s: line %" PRId64 " does not hold record %" PRId64,
                    j->path, j->last_seq, j->last_seq);
    cJSON_Delete(record);
    return e;
}

/* Counts the records that are there and cuts off what was not written whole. */
static struct err *recover(struct journal *j)
{
    struct journal_place end = {0};
    off_t last_line = 0;
    TRY(walk(j, INT64_MAX, &end, &last_line));
    j->last_seq = end.seq;
    j->bytes = end.offset;
    if (ftruncate(j->fd, j->bytes) < 0)
        return err_errno(errno, "cannot cut the torn end off journal %s", j->path);
    return j->last_seq ? check_last(j, last_line) : NULL;
}

struct err *journal_open(const char *path, struct journal *out)
{
    struct journal j = {.path = strdup(path), .fd = -1};
    if (!j.path)
        return err_no_memory();
    struct err *e = NULL;
    j.fd = open(path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
    if (j.fd < 0)
        e = err_errno(errno, "cannot open journal %s", path);
    if (!e)
        e = recover(&j);
    if (e)
        journal_close(&j);
    else
        *out = j;
    return e;
}

void journal_close(struct journal *j)
{
    if (j->fd >= 0)
        close(j->fd);
    free(j->path);
    *j = (struct journal){.fd = -1};
}

struct err *journal_append(struct journal *j, const char *line, size_t bytes)
{
    if (j->torn && ftruncate(j->fd, j->bytes) < 0)
        return err_errno(errno, "cannot cut the torn end off journal %s", j->path);
    j->torn = false;
    ssize_t n;
    do
        n = write(j->fd, line, bytes);
    while (n < 0 && errno == EINTR);
    if (n != (ssize_t)bytes) {
        j->torn = true; /* whatever it says: it may have written a part */
        return err_errno(n < 0 ? errno : ENOSPC, "cannot write record %" PRId64 " to journal %s",
                         j->last_seq + 1, j->path);
    }
    j->last_seq++;
    j->bytes += (off_t)bytes;
    return NULL;
}

struct err *journal_seek(const struct journal *j, int64_t seq, struct journal_place *place)
{
    off_t before;
    if (seq < place->seq)
        *place = (struct journal_place){0};
    TRY(walk(j, seq, place, &before));
    if (place->seq != seq)
        return err_new(ERR_IO, "journal %s ends before record %" PRId64 ", which it held", j->path,
                       seq);
    return NULL;
}

struct err *journal_read(const struct journal *j, off_t offset, off_t end, char *to, size_t *bytes)
{
    size_t wanted = end - offset < (off_t)LINE_BYTES ? (size_t)(end - offset) : LINE_BYTES;
    TRY(read_at(j, offset, to, wanted, bytes));
    const char *newline = memrchr(to, '\n', *bytes);
    if (!newline)
        return err_new(ERR_IO, "journal %s has no whole record at byte %lld, where one was",
                       j->path, (long long)offset);
    *bytes = (size_t)(newline + 1 - to);
    return NULL;
}
