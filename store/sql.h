/* Inside the store: a connection, its cached statements and its memory, under the entity files.
 *
 * An entity function reads like its SQL:
 *
 *     return store_exec(tx, "set the lease", "UPDATE attempts SET lease_until_s = ? WHERE ...",
 *                       V_TIME(until_s), V_INT(job_id), V_INT(number));
 *
 *     struct store_rows rows;
 *     TRY(store_query(tx, &rows, "list the shards", "SELECT rank, ... WHERE checkpoint_id = ?",
 *                     V_INT(id)));
 *     while (store_next(&rows)) { ... store_int(&rows, 0) ... }
 *     return store_finish(&rows);
 *
 * Reading a column cannot fail visibly: the first failure is kept in the rows, store_next() then
 * says false and store_finish(), which every query must reach, returns it. */
#ifndef STORE_SQL_H
#define STORE_SQL_H

#include <sqlite3.h>

#include "store/attempts.h"
#include "store/store.h"

#define STORE_STATEMENTS 512 /* cache slots; there are at most two hundred texts */

struct store_memory;

struct store_tx {
    sqlite3 *db;
    const char *path; /* for messages; outlives the connection */
    bool reads_only;
    struct store *store; /* a lent reader's way back */
    struct store_tx *next_free;
    struct store_memory *memory;
    struct {
        char *sql;
        sqlite3_stmt *stmt;
    } statements[STORE_STATEMENTS];
};

/* Opens a connection with the pragmas that all share. `tx` is zeroed and not to be moved. */
struct err *store_connect(struct store_tx *tx, const char *path, bool reads_only);
void store_disconnect(struct store_tx *tx);
/* "cannot <operation>: ..." of what SQLite just answered on this connection. */
struct err *store_sql_error(struct store_tx *tx, int code, const char *operation);
/* Runs a text of statements without values or rows of interest. */
struct err *store_script(struct store_tx *tx, const char *operation, const char *sql);

/* Memory of the transaction, zeroed; NULL when there is none. */
void *store_take(struct store_tx *tx, size_t bytes);
void store_forget(struct store_tx *tx);

struct store_value {
    enum { VALUE_NULL, VALUE_INT, VALUE_REAL, VALUE_TEXT, VALUE_BLOB } type;
    int64_t i;
    double d;
    const void *p;
    size_t size;
};

struct store_value store_value_int(int64_t i);
struct store_value store_value_real(double d);
struct store_value store_value_text(const char *text);
struct store_value store_value_blob(const void *p, size_t size);

#define V_INT(x) store_value_int(x)
#define V_REAL(x) store_value_real(x) /* NaN becomes NULL */
#define V_TEXT(x) store_value_text(x) /* NULL becomes NULL */
#define V_BLOB(p, size) store_value_blob(p, size)
#define V_NULL ((struct store_value){.type = VALUE_NULL})
/* Ids and times that are none (0) and indices that are none (-1) become NULL. */
#define V_ID(x) ((x) ? V_INT(x) : V_NULL)
#define V_TIME(x) ((x) != 0 ? V_REAL(x) : V_NULL)
#define V_INDEX(x) ((x) >= 0 ? V_INT(x) : V_NULL)

/* The leading element keeps the array from being empty; it is not counted. */
#define STORE_VALUES(...) ((const struct store_value[]){V_NULL, ##__VA_ARGS__} + 1)
#define STORE_COUNT(...)                                                                           \
    (sizeof((const struct store_value[]){V_NULL, ##__VA_ARGS__}) / sizeof(struct store_value) - 1)

/* `what` completes "cannot ..." in errors. */
#define store_exec(tx, what, sql, ...)                                                             \
    store_exec_values(tx, what, sql, NULL, STORE_VALUES(__VA_ARGS__), STORE_COUNT(__VA_ARGS__))
/* `changed`: how many rows were touched. */
#define store_change(tx, what, changed, sql, ...)                                                  \
    store_exec_values(tx, what, sql, changed, STORE_VALUES(__VA_ARGS__), STORE_COUNT(__VA_ARGS__))
#define store_query(tx, rows, what, sql, ...)                                                      \
    store_query_values(tx, rows, what, sql, STORE_VALUES(__VA_ARGS__), STORE_COUNT(__VA_ARGS__))

struct store_rows {
    struct store_tx *tx;
    const char *what;
    sqlite3_stmt *stmt; /* NULL: ended */
    struct err *err;
};

struct err *store_exec_values(struct store_tx *tx, const char *what, const char *sql,
                              int64_t *changed, const struct store_value *values, size_t count);
/* Text and blob values must live until store_finish(). */
struct err *store_query_values(struct store_tx *tx, struct store_rows *rows, const char *what,
                               const char *sql, const struct store_value *values, size_t count);
bool store_next(struct store_rows *rows);
struct err *store_finish(struct store_rows *rows);

int64_t store_int(struct store_rows *rows, int column);        /* NULL: 0 */
int64_t store_index(struct store_rows *rows, int column);      /* NULL: -1 */
double store_real(struct store_rows *rows, int column);        /* NULL: 0 */
double store_real_or_nan(struct store_rows *rows, int column); /* NULL: NaN */
const char *store_text(struct store_rows *rows, int column);   /* copied; NULL: NULL */
void store_bytes(struct store_rows *rows, int column, uint8_t *to, size_t size); /* NULL: zeros */
/* The index of the text in `names`; a NULL column gives `none`. */
int store_name(struct store_rows *rows, int column, const char *const *names, int count, int none);
/* An array in the transaction's memory with room for one more than `count`: `items`, or a wider
 * copy. NULL: no memory (and kept in the rows). */
void *store_widen(struct store_rows *rows, void *items, size_t count, size_t item_bytes);
/* The address of a new, zeroed element at the end of a list, or NULL likewise. */
#define STORE_PUSH(rows, list)                                                                     \
    ({                                                                                             \
        void *wide = store_widen(rows, (list)->items, (list)->count, sizeof *(list)->items);       \
        if (wide)                                                                                  \
            (list)->items = wide;                                                                  \
        wide ? &(list)->items[(list)->count++] : NULL;                                             \
    })

/* Queries of a page ask for one row more than its limit; cuts it off, and says that there was. */
#define STORE_CUT_PAGE(list, limit)                                                                \
    do {                                                                                           \
        (list)->more = (list)->count > (size_t)(limit);                                            \
        if ((list)->more)                                                                          \
            (list)->count = (size_t)(limit);                                                       \
    } while (0)

/* A query that is put together from conditions: clauses and their values in order. It must live
 * until store_finish(). */
struct store_where {
    char sql[1024], sets[512];
    size_t used, sets_used, count;
    struct store_value values[12];
};
/* Begins with a "SELECT ..." that has no WHERE. */
void store_where_begin(struct store_where *where, const char *select);
/* "AND" and the condition, which has one `?`. */
void store_where_and(struct store_where *where, const char *condition, struct store_value value);
/* The column is one of the names whose bits are set; no condition when no bit is. */
void store_where_in(struct store_where *where, const char *column, unsigned bits,
                    const char *const *names, int count);
/* The rows of a page by id, and one more. */
struct err *store_where_page(struct store_tx *tx, struct store_where *where,
                             const struct store_page *page, struct store_rows *rows,
                             const char *what);

/* The verdict on a record of a sender that is not stale. */
enum store_verdict store_judge_record(int64_t seq, int64_t last_seq);

/* Finds a name; false when it is none. */
bool store_name_parse(const char *name, const char *const *names, int count, int *index);

#endif
