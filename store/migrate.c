#include "store/migrate.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define APPLICATION_ID 0x646c6c6d /* "dllm", in the file's header for file(1) and for us */

/* ---- store_schema: made from the files by the build ---- */
#include "store_schema.inc"

static struct err *number(struct store_tx *tx, const char *sql, int64_t *value)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "read the database's version", sql));
    if (store_next(&rows))
        *value = store_int(&rows, 0);
    return store_finish(&rows);
}

/* Version 0 and no tables at all is what a daemon that died in its first second leaves. */
static struct err *check_identity(struct store_tx *tx, const struct store_schema *schema)
{
    int64_t id = 0, version = 0, tables = 0;
    TRY(number(tx, "PRAGMA application_id", &id));
    TRY(number(tx, "PRAGMA user_version", &version));
    TRY(number(tx, "SELECT count(*) FROM sqlite_schema", &tables));
    if (id != APPLICATION_ID && (id || version || tables))
        return err_new(ERR_INVALID, "%s is a database of another program; name another path",
                       tx->path);
    if (version < 0 || version > schema->version)
        return err_new(ERR_INVALID,
                       "the database %s has version %lld and this dllmd knows versions up to %d; "
                       "run the newer dllmd, or restore a backup of the older database",
                       tx->path, (long long)version, schema->version);
    return NULL;
}

static struct err *check_integrity(struct store_tx *tx)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "check the database", "PRAGMA quick_check(1)"));
    const char *verdict = store_next(&rows) ? store_text(&rows, 0) : NULL;
    TRY(store_finish(&rows));
    if (!verdict || strcmp(verdict, "ok"))
        return err_new(ERR_IO,
                       "the database %s is damaged (%s); restore it from a backup, or move it away "
                       "to begin anew",
                       tx->path, verdict ? verdict : "no answer");
    return NULL;
}

/* Whether a daemon died while it made the database, before the write-ahead log was turned on: the
 * transaction that it left must be undone, for which reading alone does not do. */
static struct err *has_journal(const char *path, bool *has)
{
    char *journal;
    if (asprintf(&journal, "%s-journal", path) < 0)
        return err_no_memory();
    *has = access(journal, F_OK) == 0;
    free(journal);
    return NULL;
}

struct err *store_probe(const char *path, const struct store_schema *schema)
{
    struct stat st;
    if (stat(path, &st))
        return errno == ENOENT ? NULL : err_errno(errno, "cannot look at the database %s", path);
    if (!S_ISREG(st.st_mode))
        return err_new(ERR_INVALID, "the database %s is not a file", path);
    if (st.st_size == 0)
        return NULL;
    struct store_tx tx = {0};
    bool undo = false;
    TRY(has_journal(path, &undo));
    TRY(store_connect(&tx, path, !undo));
    struct err *e = check_identity(&tx, schema);
    if (!e)
        e = check_integrity(&tx);
    store_disconnect(&tx);
    return e;
}

static struct err *run_script(struct store_tx *tx, const char *script, int version)
{
    TRY(store_script(tx, "change the schema", script));
    struct store_rows rows;
    TRY(store_query(tx, &rows, "check the foreign keys", "PRAGMA foreign_key_check"));
    const char *table = store_next(&rows) ? store_text(&rows, 0) : NULL;
    TRY(store_finish(&rows));
    if (table)
        return err_new(ERR_INTERNAL, "rows of %s would point nowhere", table);
    char sql[96];
    snprintf(sql, sizeof sql, "PRAGMA application_id = %d; PRAGMA user_version = %d",
             APPLICATION_ID, version);
    return store_script(tx, "write the database's version", sql);
}

static struct err *step(struct store_tx *tx, const struct store_schema *schema, bool *more)
{
    TRY(store_script(tx, "begin a migration", "BEGIN IMMEDIATE"));
    int64_t version = 0;
    struct err *e = number(tx, "PRAGMA user_version", &version);
    if (!e && version < schema->version) {
        e = run_script(tx, schema->scripts[version], (int)version + 1);
        if (e)
            e = err_wrap(e, "the migration of %s from version %lld to %lld failed and was undone",
                         tx->path, (long long)version, (long long)version + 1);
    }
    if (!e)
        e = store_script(tx, "commit a migration", "COMMIT");
    if (e && !sqlite3_get_autocommit(tx->db))
        err_free(store_script(tx, "undo a migration", "ROLLBACK"));
    *more = !e && version + 1 < schema->version;
    return e;
}

struct err *store_migrate(struct store_tx *tx, const struct store_schema *schema)
{
    /* A table that others refer to is changed by making a new one, which enforcement forbids; the
     * keys are checked before each commit instead. */
    TRY(store_script(tx, "prepare a migration", "PRAGMA foreign_keys = OFF"));
    struct err *e = NULL;
    for (bool more = true; more && !e;)
        e = step(tx, schema, &more);
    store_forget(tx);
    if (!e)
        e = store_script(tx, "end the migrations", "PRAGMA foreign_keys = ON");
    return e;
}
