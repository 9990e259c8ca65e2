/* The files a dataset is made from, and reading them in bounded memory. Private to data/. */
#ifndef WORKER_SOURCES_H
#define WORKER_SOURCES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <xxhash.h>

#include "daemon/base/err.h"
#include "daemon/base/source_kind.h"

struct source {
    char *path;
    enum source_kind kind;
    int64_t bytes;      /* when it was found */
    XXH128_hash_t hash; /* of its contents, once it was read to its end for the first time */
};

struct sources {
    struct source *items;
    size_t count;
    int64_t bytes; /* sum */
};

/* The file `path`, or the files of the directory `path` (see prepare.h) in byte order of their
 * names. Links in a directory that lead out of it are refused: only `path` itself has been
 * allowed. ERR_NOT_FOUND, ERR_INVALID, ERR_IO, ERR_NO_MEMORY; *out is empty then. */
struct err *sources_find(const char *path, struct sources *out);
void sources_free(struct sources *s);

/* ---- Reading one from start to end ---- */

struct source_reader;

/* Called with the bytes of every read; an error ends the reading. */
typedef struct err *source_tick(void *user, size_t bytes);

struct err *source_reader_open(const struct source *source, source_tick *tick, void *user,
                               struct source_reader **out);
void source_reader_close(struct source_reader *r); /* NULL is fine */

/* The next line without its end (LF or CRLF), valid and changeable until the next call; the last
 * line may lack its end. *line is NULL at the end of the file. A line of more than max_bytes is
 * ERR_INVALID. */
struct err *source_reader_line(struct source_reader *r, size_t max_bytes, char **line,
                               size_t *bytes);
/* Number of the line that came last, from 1. */
int64_t source_reader_line_number(const struct source_reader *r);

/* The next piece of the text, whole UTF-8 sequences only, without a byte order mark at the start;
 * *text is NULL at the end. ERR_INVALID (line and byte) for what is not UTF-8 or a NUL. */
struct err *source_reader_text(struct source_reader *r, const char **text, size_t *bytes);

/* Reads what is left, and returns the hash of the whole file. */
struct err *source_reader_hash(struct source_reader *r, XXH128_hash_t *out);

#endif
