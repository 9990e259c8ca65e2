#include "store/sql.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct err *prepare(struct store_tx *tx, const char *what, const char *sql,
                           sqlite3_stmt **stmt);

/* ---- connection ---- */

#define BUSY_TIMEOUT_MS 10000

struct err *store_connect(struct store_tx *tx, const char *path, bool reads_only)
{
    tx->path = path;
    tx->reads_only = reads_only;
    int flags = (reads_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE) | SQLITE_OPEN_NOMUTEX;
    int code = sqlite3_open_v2(path, &tx->db, flags, NULL);
    struct err *e = NULL;
    if (code != SQLITE_OK) {
        e = tx->db ? store_sql_error(tx, code, "open the database") : err_no_memory();
        store_disconnect(tx);
        return e;
    }
    sqlite3_extended_result_codes(tx->db, 1);
    sqlite3_busy_timeout(tx->db, BUSY_TIMEOUT_MS);
    e = store_script(tx, "set up the connection",
                     "PRAGMA foreign_keys = ON; PRAGMA synchronous = FULL;"
                     "PRAGMA journal_size_limit = 67108864;");
    /* What undoes a transaction must not itself lack memory. */
    static const char *const always[] = {"ROLLBACK", "ROLLBACK TO write", "RELEASE write"};
    sqlite3_stmt *stmt;
    for (size_t i = 0; i < sizeof always / sizeof *always && !e; i++)
        e = prepare(tx, "set up the connection", always[i], &stmt);
    if (e)
        store_disconnect(tx);
    return e;
}

void store_disconnect(struct store_tx *tx)
{
    for (size_t i = 0; i < STORE_STATEMENTS; i++) {
        sqlite3_finalize(tx->statements[i].stmt);
        free(tx->statements[i].sql);
    }
    store_forget(tx);
    sqlite3_close(tx->db);
    memset(tx, 0, sizeof *tx);
}

struct err *store_sql_error(struct store_tx *tx, int code, const char *operation)
{
    const char *says = sqlite3_errmsg(tx->db), *path = tx->path;
    if (code == SQLITE_IOERR_NOMEM)
        return err_no_memory();
    switch (code & 0xff) {
    case SQLITE_FULL:
        return err_new(ERR_IO,
                       "cannot %s: the disk under the database %s is full; make room there, the "
                       "service then goes on by itself",
                       operation, path);
    case SQLITE_IOERR:
    case SQLITE_CANTOPEN: {
        int errnum = sqlite3_system_errno(tx->db); /* 0 where SQLite forgot it */
        return err_new(ERR_IO, "cannot %s: %s%s%s on the database %s; check its disk and directory",
                       operation, says, errnum ? ": " : "", errnum ? strerror(errnum) : "", path);
    }
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
        return err_new(ERR_IO,
                       "cannot %s: the database %s is damaged or not a database (%s); restore it "
                       "from a backup, or move it away to begin anew",
                       operation, path, says);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
        return err_new(ERR_TIMEOUT,
                       "cannot %s: another process has held the database %s locked for %d s",
                       operation, path, BUSY_TIMEOUT_MS / 1000);
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_READONLY:
        if (tx->reads_only)
            return err_new(ERR_INTERNAL, "cannot %s: a read transaction may not write", operation);
        return err_new(ERR_IO, "cannot %s: the database %s may not be written (%s)", operation,
                       path, says);
    case SQLITE_TOOBIG:
        return err_new(ERR_INVALID, "cannot %s: a value is too long for the database", operation);
    case SQLITE_NOMEM:
        return err_no_memory();
    default:
        return err_new(ERR_INTERNAL, "cannot %s: %s", operation, says);
    }
}

struct err *store_script(struct store_tx *tx, const char *operation, const char *sql)
{
    int code = sqlite3_exec(tx->db, sql, NULL, NULL, NULL);
    return code == SQLITE_OK ? NULL : store_sql_error(tx, code, operation);
}

/* ---- memory: pieces in a list, the newest first, small takes cut from it ---- */

#define PIECE_BYTES 16384
#define TAKE_ALIGNMENT 16

struct store_memory {
    struct store_memory *next;
    size_t used, size;
    _Alignas(TAKE_ALIGNMENT) char data[];
};

void *store_take(struct store_tx *tx, size_t bytes)
{
    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = (bytes + TAKE_ALIGNMENT - 1) / TAKE_ALIGNMENT * TAKE_ALIGNMENT;
    struct store_memory *m = tx->memory;
    if (!m || m->size - m->used < bytes) {
        size_t size = bytes > PIECE_BYTES ? bytes : PIECE_BYTES;
        m = calloc(1, sizeof *m + size);
        if (!m)
            return NULL;
        m->size = size;
        m->next = tx->memory;
        tx->memory = m;
    }
    m->used += bytes;
    return m->data + m->used - bytes;
}

void store_forget(struct store_tx *tx)
{
    while (tx->memory) {
        struct store_memory *next = tx->memory->next;
        free(tx->memory);
        tx->memory = next;
    }
}

/* ---- values ---- */

struct store_value store_value_int(int64_t i)
{
    return (struct store_value){.type = VALUE_INT, .i = i};
}

struct store_value store_value_real(double d)
{
    return isnan(d) ? V_NULL : (struct store_value){.type = VALUE_REAL, .d = d};
}

struct store_value store_value_text(const char *text)
{
    return text ? (struct store_value){.type = VALUE_TEXT, .p = text, .size = strlen(text)}
                : V_NULL;
}

struct store_value store_value_blob(const void *p, size_t size)
{
    return (struct store_value){.type = VALUE_BLOB, .p = p, .size = size};
}

/* ---- statements: each text is prepared once a connection and found again by its hash ---- */

static uint64_t text_hash(const char *text)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (; *text; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

static struct err *prepare(struct store_tx *tx, const char *what, const char *sql,
                           sqlite3_stmt **stmt)
{
    size_t slot = text_hash(sql) % STORE_STATEMENTS, tried = 0;
    while (tx->statements[slot].sql && strcmp(tx->statements[slot].sql, sql)) {
        slot = (slot + 1) % STORE_STATEMENTS;
        if (++tried == STORE_STATEMENTS)
            return err_new(ERR_INTERNAL, "cannot %s: more statements than cache slots", what);
    }
    if (!tx->statements[slot].sql) {
        char *copy = strdup(sql);
        if (!copy)
            return err_no_memory();
        int code = sqlite3_prepare_v3(tx->db, sql, -1, SQLITE_PREPARE_PERSISTENT,
                                      &tx->statements[slot].stmt, NULL);
        if (code != SQLITE_OK) {
            free(copy);
            return store_sql_error(tx, code, what);
        }
        tx->statements[slot].sql = copy;
    }
    *stmt = tx->statements[slot].stmt;
    return NULL;
}

static int bind(sqlite3_stmt *stmt, int place, const struct store_value *v)
{
    switch (v->type) {
    case VALUE_INT:
        return sqlite3_bind_int64(stmt, place, v->i);
    case VALUE_REAL:
        return sqlite3_bind_double(stmt, place, v->d);
    case VALUE_TEXT:
        return sqlite3_bind_text64(stmt, place, v->p, v->size, SQLITE_STATIC, SQLITE_UTF8);
    case VALUE_BLOB:
        return sqlite3_bind_blob64(stmt, place, v->p, v->size, SQLITE_STATIC);
    case VALUE_NULL:
        break;
    }
    return sqlite3_bind_null(stmt, place);
}

static void release(sqlite3_stmt *stmt)
{
    sqlite3_reset(stmt);
    sqlite3_clear_bindings(stmt);
}

struct err *store_query_values(struct store_tx *tx, struct store_rows *rows, const char *what,
                               const char *sql, const struct store_value *values, size_t count)
{
    *rows = (struct store_rows){.tx = tx, .what = what};
    sqlite3_stmt *stmt = NULL;
    TRY(prepare(tx, what, sql, &stmt));
    for (size_t i = 0; i < count; i++) {
        int code = bind(stmt, (int)i + 1, &values[i]);
        if (code != SQLITE_OK) {
            struct err *e = store_sql_error(tx, code, what);
            release(stmt);
            return e;
        }
    }
    rows->stmt = stmt;
    return NULL;
}

struct err *store_exec_values(struct store_tx *tx, const char *what, const char *sql,
                              int64_t *changed, const struct store_value *values, size_t count)
{
    struct store_rows rows;
    TRY(store_query_values(tx, &rows, what, sql, values, count));
    store_next(&rows);
    TRY(store_finish(&rows));
    if (changed)
        *changed = sqlite3_changes64(tx->db);
    return NULL;
}

/* ---- rows ---- */

static void fail(struct store_rows *rows, struct err *e)
{
    if (rows->err)
        err_free(e);
    else
        rows->err = e;
}

bool store_next(struct store_rows *rows)
{
    if (!rows->stmt)
        return false;
    if (!rows->err) {
        int code = sqlite3_step(rows->stmt);
        if (code == SQLITE_ROW)
            return true;
        if (code != SQLITE_DONE)
            fail(rows, store_sql_error(rows->tx, code, rows->what));
    }
    release(rows->stmt);
    rows->stmt = NULL;
    return false;
}

struct err *store_finish(struct store_rows *rows)
{
    if (rows->stmt)
        release(rows->stmt);
    rows->stmt = NULL;
    struct err *e = rows->err;
    rows->err = NULL;
    return e;
}

static bool is_null(struct store_rows *rows, int column)
{
    return sqlite3_column_type(rows->stmt, column) == SQLITE_NULL;
}

int64_t store_int(struct store_rows *rows, int column)
{
    return sqlite3_column_int64(rows->stmt, column);
}

int64_t store_index(struct store_rows *rows, int column)
{
    return is_null(rows, column) ? -1 : store_int(rows, column);
}

double store_real(struct store_rows *rows, int column)
{
    return sqlite3_column_double(rows->stmt, column);
}

double store_real_or_nan(struct store_rows *rows, int column)
{
    return is_null(rows, column) ? NAN : store_real(rows, column);
}

const char *store_text(struct store_rows *rows, int column)
{
    if (is_null(rows, column))
        return NULL;
    const unsigned char *text = sqlite3_column_text(rows->stmt, column);
    size_t size = (size_t)sqlite3_column_bytes(rows->stmt, column);
    char *copy = text ? store_take(rows->tx, size + 1) : NULL;
    if (!copy) {
        fail(rows, err_no_memory());
        return NULL;
    }
    memcpy(copy, text, size);
    return copy;
}

void store_bytes(struct store_rows *rows, int column, uint8_t *to, size_t size)
{
    const void *p = sqlite3_column_blob(rows->stmt, column);
    size_t got = (size_t)sqlite3_column_bytes(rows->stmt, column);
    memset(to, 0, size);
    if (p)
        memcpy(to, p, got < size ? got : size);
}

int store_name(struct store_rows *rows, int column, const char *const *names, int count, int none)
{
    if (is_null(rows, column))
        return none;
    const char *text = (const char *)sqlite3_column_text(rows->stmt, column);
    int index = none;
    if (!text)
        fail(rows, err_no_memory());
    else if (!store_name_parse(text, names, count, &index))
        fail(rows,
             err_new(ERR_INTERNAL, "cannot %s: the database says \"%s\" where that is unknown",
                     rows->what, text));
    return index;
}

void *store_widen(struct store_rows *rows, void *items, size_t count, size_t item_bytes)
{
    if (count & (count - 1))
        return items; /* there is room up to the next power of two */
    void *wider = store_take(rows->tx, (count ? 2 * count : 1) * item_bytes);
    if (!wider)
        fail(rows, err_no_memory());
    else if (count)
        memcpy(wider, items, count * item_bytes);
    return wider;
}

bool store_name_parse(const char *name, const char *const *names, int count, int *index)
{
    for (int i = 0; i < count; i++)
        if (names[i] && !strcmp(names[i], name)) {
            *index = i;
            return true;
        }
    return false;
}
