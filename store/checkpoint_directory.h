/* The checkpoints of a job: one directory that holds
 *
 *   step-000000012                 a checkpoint, whole whenever it has this name
 *   .partial-2-step-000000012-1    being written by attempt 2, its checkpoint number 1
 *   .aborted-2-step-000000012-1    one that a rank gave up, kept to tell the other ranks
 *   .deleting-…                    on its way out
 *
 * A name of the first kind comes and goes by rename(2) alone. Everything else may be removed by
 * whoever starts the next attempt. Several processes, of several attempts, may call these functions
 * at the same time.
 */
#ifndef STORE_CHECKPOINT_DIRECTORY_H
#define STORE_CHECKPOINT_DIRECTORY_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"

#define CHECKPOINT_NAME_BYTES 96

/* "step-000000012" */
void checkpoint_name(int64_t step, char name[static CHECKPOINT_NAME_BYTES]);

/* The steps of all checkpoints, rising; *steps is freed by the caller. ERR_NOT_FOUND where the
 * directory is missing. */
struct err *checkpoint_list(const char *directory, int64_t **steps, size_t *count);

/* Deletes a checkpoint: its name is gone for good before the first of its files is. ERR_NOT_FOUND
 * where there is none; after any other error what is left of it is checkpoint_clean's. */
struct err *checkpoint_remove(const char *path);

/* Removes what `attempt` and those before it left unfinished, and what is left of deletions. To be
 * called before a rank of `attempt` begins a checkpoint. A rank of an older attempt that still
 * writes one fails. */
struct err *checkpoint_clean(const char *directory, int64_t attempt);

/* ---- For the writer ---- */

/* ".<kind>-2-step-000000012-1" */
void checkpoint_temporary_name(const char *kind, int64_t attempt, int64_t step, int64_t number,
                               char name[static CHECKPOINT_NAME_BYTES]);
#define CHECKPOINT_PARTIAL "partial"
#define CHECKPOINT_ABORTED "aborted"

/* As checkpoint_clean, for all that came before checkpoint `number` of `attempt`. */
struct err *checkpoint_sweep(const char *directory, int64_t attempt, int64_t number);

/* Renames directory/name out of the way, durably, then removes it with all that is in it.
 * ERR_NOT_FOUND where there is none. */
struct err *checkpoint_discard(const char *directory, const char *name);
/* Removes a file, or a directory with all that is in it, in place. Missing is fine. */
struct err *checkpoint_remove_tree(const char *path);

#endif
