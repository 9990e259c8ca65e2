#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "store/sql.h"

/* The texts are ours and bounded, so is their sum. */
static void append(struct store_where *w, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static void append(struct store_where *w, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(w->sql + w->used, sizeof w->sql - w->used, format, args);
    va_end(args);
    assert(n >= 0 && w->used + (size_t)n < sizeof w->sql);
    w->used += (size_t)n;
}

void store_where_begin(struct store_where *w, const char *select)
{
    w->used = w->count = w->sets_used = 0;
    append(w, "%s WHERE true", select);
}

static void push_value(struct store_where *w, struct store_value value)
{
    assert(w->count < sizeof w->values / sizeof *w->values);
    w->values[w->count++] = value;
}

void store_where_and(struct store_where *w, const char *condition, struct store_value value)
{
    append(w, " AND %s", condition);
    push_value(w, value);
}

/* A JSON array, so that one statement serves every set. */
void store_where_in(struct store_where *w, const char *column, unsigned bits,
                    const char *const *names, int count)
{
    const char *separator = "[";
    size_t begin = w->sets_used;
    if (!bits)
        return;
    for (int i = 0; i < count; i++)
        if (bits & 1u << i) {
            w->sets_used += (size_t)snprintf(w->sets + w->sets_used, sizeof w->sets - w->sets_used,
                                             "%s\"%s\"", separator, names[i]);
            separator = ",";
        }
    w->sets_used += (size_t)snprintf(w->sets + w->sets_used, sizeof w->sets - w->sets_used, "%s",
                                     *separator == '[' ? "[]" : "]");
    assert(w->sets_used + 1 < sizeof w->sets);
    append(w, " AND %s IN (SELECT value FROM json_each(?))", column);
    push_value(w, V_TEXT(w->sets + begin));
    w->sets_used++; /* past its end */
}

struct err *store_where_page(struct store_tx *tx, struct store_where *w,
                             const struct store_page *page, struct store_rows *rows,
                             const char *what)
{
    int64_t none = page->oldest_first ? 0 : INT64_MAX;
    store_where_and(w, page->oldest_first ? "id > ?" : "id < ?",
                    V_INT(page->cursor ? page->cursor : none));
    append(w, " ORDER BY id%s LIMIT ? + 1", page->oldest_first ? "" : " DESC");
    push_value(w, V_INT(page->limit));
    return store_query_values(tx, rows, what, w->sql, w->values, w->count);
}
