/* A prepared dataset as a job reads it: two splits, packed into sequences.
 *
 * Split. Each document is held out or not by a draw under a fixed key and its number, so the split
 * depends on the artifact and the fraction alone and runs of other seeds compare. Where the
 * fraction is above 0 and there are two documents, each split has at least one.
 *
 * Packing. Documents of a split follow each other in the artifact's order; each starts at the next
 * block boundary. What does not fit into a sequence goes on at the start of the next one as a
 * document of its own. Rows between a document's end and the next boundary, and behind the last
 * document of the split, are padding.
 *
 * Only where each sequence starts is kept: 16 bytes a sequence. Reading is thread-safe.
 */
#ifndef WORKER_DATASET_H
#define WORKER_DATASET_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/plan/plan.h"

struct dataset;

enum dataset_split { DATASET_TRAINING, DATASET_VALIDATION };

/* Maps the artifact (a directory) and packs it. sequence_length is a multiple of block_size.
 * ERR_NOT_FOUND, ERR_INVALID where the artifact is damaged or holds no token, ERR_IO,
 * ERR_NO_MEMORY. */
struct err *dataset_open(const char *artifact, int64_t sequence_length, int64_t block_size,
                         double validation_fraction, struct dataset **out);
void dataset_close(struct dataset *d); /* NULL is fine */

int64_t dataset_sequences(const struct dataset *d, enum dataset_split split);
int64_t dataset_documents(const struct dataset *d, enum dataset_split split);
int64_t dataset_tokens(const struct dataset *d, enum dataset_split split);

/* One sequence, index in [0, dataset_sequences): ids and supervised (0 or 1) have sequence_length
 * entries; padding rows get the tokenizer's pad id and 0. documents has room for sequence_length /
 * block_size; *n_documents of them are filled, in order. ERR_INVALID where the artifact holds an id
 * that its tokenizer does not have: it is damaged. */
struct err *dataset_sequence(const struct dataset *d, enum dataset_split split, int64_t index,
                             int32_t *ids, uint8_t *supervised, struct plan_document *documents,
                             size_t *n_documents);

/* Entropy of the split's own token frequencies in nats per supervised token: what the best
 * prediction without any context would cost. 0 for an empty split. */
double dataset_unigram_entropy(const struct dataset *d, enum dataset_split split);

/* One above the largest id that a sequence can hold. */
int64_t dataset_vocab(const struct dataset *d);

#endif
