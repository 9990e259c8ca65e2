/* The artifact: a prepared dataset on disk, a directory that never changes once it has its name.
 *
 *   tokens       u32 [tokens], documents end to end
 *   supervised   bits [tokens], least significant first: may the token carry loss
 *   documents    u64 [documents + 1], where each begins in `tokens`; the last entry is their count
 *   unigrams     u64 [vocab], how often each id stands among the supervised tokens
 *   manifest.json  counts, statistics, and size and XXH3 of each of the files above
 *
 * Little-endian. The name is the XXH3-128 of everything that made it.
 */
#ifndef WORKER_ARTIFACT_H
#define WORKER_ARTIFACT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <xxhash.h>

#include "daemon/base/err.h"
#include "daemon/worker/data/tokenizer.h"

#define ARTIFACT_VERSION 1
#define ARTIFACT_MANIFEST "manifest.json"

enum artifact_file {
    ARTIFACT_TOKENS,
    ARTIFACT_SUPERVISED,
    ARTIFACT_DOCUMENTS,
    ARTIFACT_UNIGRAMS,
    ARTIFACT_FILES,
};
extern const char *const artifact_file_names[ARTIFACT_FILES];

struct artifact {
    char *path;
    struct {
        const void *map; /* NULL where the file is empty */
        size_t bytes;
    } files[ARTIFACT_FILES];
    /* Into the maps. */
    const uint32_t *tokens;
    const uint8_t *supervised;
    const uint64_t *documents;
    const uint64_t *unigrams;

    uint64_t n_tokens;
    uint64_t n_supervised;
    uint64_t n_documents;
    uint64_t text_bytes;    /* of the documents, UTF-8 */
    uint64_t skipped_empty; /* records whose text was empty */
    uint32_t vocab, pad;
    double unigram_entropy; /* nats per supervised token, over everything */
};

static inline bool artifact_supervised(const struct artifact *a, uint64_t token)
{
    return a->supervised[token / 8] >> token % 8 & 1;
}

/* Maps the files and holds them against the manifest: names, sizes, and that `documents` rises.
 * `verify` also reads everything and compares the XXH3. ERR_NOT_FOUND where `path` does not exist,
 * ERR_INVALID (naming the file) where something is damaged. Zeroes *a on error. */
struct err *artifact_open(const char *path, bool verify, struct artifact *a);
void artifact_close(struct artifact *a);

/* -sum p log p of n counts, in nats; 0 where all are 0. */
double artifact_entropy(const uint64_t *counts, size_t n);

#define ARTIFACT_HASH_CHARS 32
/* 32 lower-case hex digits and a NUL. */
void artifact_hex(XXH128_hash_t hash, char out[static ARTIFACT_HASH_CHARS + 1]);

#endif
