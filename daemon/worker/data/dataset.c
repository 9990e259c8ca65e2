#include "daemon/worker/data/dataset.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/philox.h"
#include "daemon/worker/data/artifact.h"

#define SPLITS 2
/* The key of the split: a constant, so that all runs hold out the same documents. */
#define SPLIT_SEED 0

#define WORD_BITS 64

/* Where a sequence starts: a token of a document. */
struct start {
    uint64_t document;
    uint64_t offset;
};

struct split {
    struct start *starts; /* [n] */
    uint64_t n, capacity;
    uint64_t documents, tokens;
    int64_t row; /* while packing: the next free one of the last sequence */
    double entropy;
};

struct dataset {
    struct artifact artifact;
    int64_t length, block_size;
    uint64_t *held_out; /* bits [documents] */
    struct split splits[SPLITS];
};

/* ---- Split ---- */

static bool is_held_out(const struct dataset *d, uint64_t document)
{
    return d->held_out[document / WORD_BITS] >> document % WORD_BITS & 1;
}

static void flip(struct dataset *d, uint64_t document)
{
    d->held_out[document / WORD_BITS] ^= (uint64_t)1 << document % WORD_BITS;
}

/* Draws the split; least and greatest draw decide where a split would be empty. */
static struct err *draw_split(struct dataset *d, double fraction)
{
    uint64_t n = d->artifact.n_documents, held_out = 0, least = 0, greatest = 0;
    float least_u = 2, greatest_u = -1;
    d->held_out = calloc(n / WORD_BITS + 1, sizeof *d->held_out);
    if (!d->held_out)
        return err_no_memory();
    if (fraction <= 0 || n < 2)
        return NULL;
    for (uint64_t i = 0; i < n; i++) {
        float u = philox_uniform(SPLIT_SEED, PHILOX_SPLIT, 0, 0, i);
        if (u < least_u) {
            least_u = u;
            least = i;
        }
        if (u > greatest_u) {
            greatest_u = u;
            greatest = i;
        }
        if (u < fraction) {
            flip(d, i);
            held_out++;
        }
    }
    if (held_out == 0)
        flip(d, least);
    else if (held_out == n)
        flip(d, greatest);
    return NULL;
}

/* The first document of the split at or after `from`; n_documents if there is none. */
static uint64_t next_document(const struct dataset *d, enum dataset_split split, uint64_t from)
{
    uint64_t n = d->artifact.n_documents;
    while (from < n) {
        uint64_t word = d->held_out[from / WORD_BITS];
        if (split == DATASET_TRAINING)
            word = ~word;
        word >>= from % WORD_BITS;
        if (word) {
            from += (uint64_t)__builtin_ctzll(word);
            return from < n ? from : n;
        }
        from += WORD_BITS - from % WORD_BITS;
    }
    return n;
}

/* ---- Packing ---- */

static uint64_t document_length(const struct dataset *d, uint64_t document)
{
    return d->artifact.documents[document + 1] - d->artifact.documents[document];
}

/* Tokens of a document's rest that go into a sequence whose next free row is `row`. */
static int64_t fitting(const struct dataset *d, uint64_t rest, int64_t row)
{
    uint64_t room = (uint64_t)(d->length - row);
    return (int64_t)(rest < room ? rest : room);
}

static int64_t next_boundary(const struct dataset *d, int64_t row)
{
    return (row + d->block_size - 1) / d->block_size * d->block_size;
}

static struct err *push_start(struct split *s, uint64_t document, uint64_t offset)
{
    if (s->n == s->capacity) {
        uint64_t capacity = s->capacity ? 2 * s->capacity : 64;
        struct start *starts = realloc(s->starts, capacity * sizeof *starts);
        if (!starts)
            return err_no_memory();
        s->starts = starts;
        s->capacity = capacity;
    }
    s->starts[s->n++] = (struct start){document, offset};
    return NULL;
}

static struct err *pack(struct dataset *d)
{
    for (int i = 0; i < SPLITS; i++)
        d->splits[i].row = d->length; /* the first document opens the first sequence */
    for (uint64_t document = 0; document < d->artifact.n_documents; document++) {
        struct split *s = &d->splits[is_held_out(d, document)];
        uint64_t length = document_length(d, document);
        for (uint64_t offset = 0; offset < length;) {
            if (s->row == d->length) {
                TRY(push_start(s, document, offset));
                s->row = 0;
            }
            int64_t n = fitting(d, length - offset, s->row);
            s->row = next_boundary(d, s->row + n);
            offset += (uint64_t)n;
        }
        s->documents++;
        s->tokens += length;
    }
    return NULL;
}

static struct err *copy_tokens(const struct artifact *a, uint64_t token, int64_t n, int32_t *ids,
                               uint8_t *supervised)
{
    for (int64_t i = 0; i < n; i++, token++) {
        uint32_t id = a->tokens[token];
        if (id >= a->vocab)
            return err_new(ERR_INVALID,
                           "%s/tokens: token %" PRIu64 " is %" PRIu32
                           ", not below the vocabulary's "
                           "%" PRIu32 ": the dataset is damaged and must be prepared again",
                           a->path, token, id, a->vocab);
        ids[i] = (int32_t)id;
        supervised[i] = artifact_supervised(a, token);
    }
    return NULL;
}

struct err *dataset_sequence(const struct dataset *d, enum dataset_split split, int64_t index,
                             int32_t *ids, uint8_t *supervised, struct plan_document *documents,
                             size_t *n_documents)
{
    const struct artifact *a = &d->artifact;
    assert(index >= 0 && index < dataset_sequences(d, split));
    struct start at = d->splits[split].starts[index];
    for (int64_t row = 0; row < d->length; row++)
        ids[row] = (int32_t)a->pad;
    memset(supervised, 0, (size_t)d->length);
    *n_documents = 0;
    for (int64_t row = 0; row < d->length && at.document < a->n_documents;) {
        int64_t n = fitting(d, document_length(d, at.document) - at.offset, row);
        TRY(copy_tokens(a, a->documents[at.document] + at.offset, n, ids + row, supervised + row));
        documents[(*n_documents)++] = (struct plan_document){.begin = row, .end = row + n};
        row = next_boundary(d, row + n);
        at = (struct start){next_document(d, split, at.document + 1), 0};
    }
    return NULL;
}

/* ---- Statistics ---- */

/* Only the held-out documents are read: the artifact knows the sum of both splits. */
static struct err *measure(struct dataset *d)
{
    const struct artifact *a = &d->artifact;
    uint64_t *counts = calloc(a->vocab + 1u, sizeof *counts);
    if (!counts)
        return err_no_memory();
    for (uint64_t i = next_document(d, DATASET_VALIDATION, 0); i < a->n_documents;
         i = next_document(d, DATASET_VALIDATION, i + 1))
        for (uint64_t token = a->documents[i]; token < a->documents[i + 1]; token++)
            if (artifact_supervised(a, token) && a->tokens[token] < a->vocab)
                counts[a->tokens[token]]++;
    d->splits[DATASET_VALIDATION].entropy = artifact_entropy(counts, a->vocab);
    for (uint32_t i = 0; i < a->vocab; i++)
        counts[i] = a->unigrams[i] - counts[i];
    d->splits[DATASET_TRAINING].entropy = artifact_entropy(counts, a->vocab);
    free(counts);
    return NULL;
}

double dataset_unigram_entropy(const struct dataset *d, enum dataset_split split)
{
    return d->splits[split].entropy;
}

int64_t dataset_sequences(const struct dataset *d, enum dataset_split split)
{
    return (int64_t)d->splits[split].n;
}

int64_t dataset_documents(const struct dataset *d, enum dataset_split split)
{
    return (int64_t)d->splits[split].documents;
}

int64_t dataset_tokens(const struct dataset *d, enum dataset_split split)
{
    return (int64_t)d->splits[split].tokens;
}

int64_t dataset_vocab(const struct dataset *d)
{
    return d->artifact.vocab;
}

/* ---- Opening ---- */

static struct err *open_artifact(struct dataset *d, const char *path, double fraction)
{
    TRY(artifact_open(path, false, &d->artifact));
    if (d->artifact.n_documents == 0)
        return err_new(ERR_INVALID, "%s holds no document", path);
    TRY(draw_split(d, fraction));
    TRY(pack(d));
    return measure(d);
}

struct err *dataset_open(const char *path, int64_t sequence_length, int64_t block_size,
                         double validation_fraction, struct dataset **out)
{
    *out = NULL;
    if (block_size < 1 || sequence_length < 1 || sequence_length % block_size != 0)
        return err_new(ERR_INVALID,
                       "sequence_length %" PRId64 " is not a multiple of block_size %" PRId64,
                       sequence_length, block_size);
    struct dataset *d = calloc(1, sizeof *d);
    if (!d)
        return err_no_memory();
    d->length = sequence_length;
    d->block_size = block_size;
    struct err *e = open_artifact(d, path, validation_fraction);
    if (e) {
        dataset_close(d);
        return e;
    }
    *out = d;
    return NULL;
}

void dataset_close(struct dataset *d)
{
    if (!d)
        return;
    for (int i = 0; i < SPLITS; i++)
        free(d->splits[i].starts);
    free(d->held_out);
    artifact_close(&d->artifact);
    free(d);
}
