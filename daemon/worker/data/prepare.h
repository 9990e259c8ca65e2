/* Preparation: text files into an artifact (artifact.h), once.
 *
 * Sources. `path` is a file or a directory; of a directory the files right in it whose names end in
 * .jsonl, .ndjson or .txt, in byte order of their names. A line of JSONL is a record whose `field`
 * holds the text of one document; a .txt file is one document. Each document becomes its tokens and
 * an end-of-document token, all supervised. Records with empty text are skipped and counted.
 *
 * The artifact's name is the XXH3-128 of the sources' contents and of everything else that shapes
 * it, so preparing the same again finds it there. It is built under a temporary name in
 * `datasets_directory`, synced and renamed: a killed preparation leaves nothing but a temporary
 * directory, which the next one removes. Memory is bounded by the longest JSONL line, whatever the
 * size of the sources. Several processes may prepare in one directory at a time.
 */
#ifndef WORKER_PREPARE_H
#define WORKER_PREPARE_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/worker/data/artifact.h"

/* A longer JSONL line is refused. */
#define PREPARE_MAX_LINE_BYTES ((size_t)1 << 28)

struct prepare_options {
    const char *path;
    const char *format;    /* "text" */
    const char *field;     /* of JSONL records; dots lead into nested objects */
    const char *tokenizer; /* "bytes" */
    const char *datasets_directory;
    /* Called about every mebibyte with bytes done and in all (each source is read twice: hashed,
     * then tokenized). false: stop, with ERR_ABORTED. May be NULL. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *user;
};

struct prepare_result {
    char *artifact; /* its path, absolute if datasets_directory is; freed by the caller */
    char hash[ARTIFACT_HASH_CHARS + 1];
    bool reused; /* it was there already */
    int64_t documents;
    int64_t tokens;
    int64_t bytes; /* of text */
    int64_t skipped_empty;
    double unigram_entropy; /* nats per supervised token, over all documents */
};

/* ERR_NOT_FOUND, ERR_INVALID (the message names file, line and byte and what would be right),
 * ERR_ABORTED, ERR_IO, ERR_NO_MEMORY. */
struct err *prepare_run(const struct prepare_options *options, struct prepare_result *out);

#endif
