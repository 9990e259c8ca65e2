/* A copy of the whole database, made while it is in use. */
#ifndef STORE_BACKUP_H
#define STORE_BACKUP_H

#include "store/store.h"

/* Writes what the read transaction sees as one file, mode 0600, without a journal beside it; it is
 * there whole and on disk, or not at all. `path` must not exist. Blocks for as long as the copy
 * takes, and writers go on meanwhile. */
struct err *store_backup(struct store_tx *tx, const char *path, int64_t *bytes);
/* Removes what copies left in that directory (it need not be there) whose process died over them.
 * While none is being written. */
struct err *store_backup_tidy(const char *directory);

#endif
