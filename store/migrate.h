/* Inside the store: which version a database has, and bringing it to ours. */
#ifndef STORE_MIGRATE_H
#define STORE_MIGRATE_H

#include "store/sql.h"

/* scripts[v - 1] brings version v - 1 to v; the first one is schema.sql. */
struct store_schema {
    const char *const *scripts;
    int version;
};

/* The one that is built in. */
extern const struct store_schema store_schema;

/* Looks at a file through a read-only connection, which leaves it and its log as they are: an
 * absent or empty one is fresh, ours of this or an older version is right, all else is refused.
 * What a daemon left that died before it turned on the log is undone, though. */
struct err *store_probe(const char *path, const struct store_schema *schema);
/* Runs the scripts that are missing, each in one transaction with its version number. */
struct err *store_migrate(struct store_tx *tx, const struct store_schema *schema);

#endif
