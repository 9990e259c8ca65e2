#include "store/metrics.h"

#include <math.h>
#include <string.h>

#include "store/sql.h"

/* ---- keys ---- */

static bool key_valid(const char *key)
{
    size_t length =
        strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");
    return length > 0 && length <= STORE_METRIC_KEY_BYTES && !key[length];
}

/* 0: there is no such key. */
static struct err *find_key(struct store_tx *tx, const char *key, int64_t *id)
{
    *id = 0;
    struct store_rows rows;
    TRY(store_query(tx, &rows, "find a metric's key", "SELECT id FROM metric_keys WHERE name = ?",
                    V_TEXT(key)));
    if (store_next(&rows))
        *id = store_int(&rows, 0);
    return store_finish(&rows);
}

static struct err *make_key(struct store_tx *tx, const char *key, int64_t *id)
{
    TRY(find_key(tx, key, id));
    if (*id)
        return NULL;
    if (!key_valid(key))
        return err_new(ERR_INVALID,
                       "\"%.80s\" is not a metric's key: up to %d letters, digits, '_', '.' or '-'",
                       key, STORE_METRIC_KEY_BYTES);
    TRY(store_exec(tx, "write a metric's key", "INSERT INTO metric_keys (name) VALUES (?)",
                   V_TEXT(key)));
    *id = sqlite3_last_insert_rowid(tx->db);
    return NULL;
}

/* ---- writing ---- */

struct err *store_metrics_put(struct store_tx *tx, int64_t job_id, int64_t step, double time_s,
                              const struct store_metric *metrics, size_t count)
{
    int64_t key;
    for (size_t i = 0; i < count; i++) {
        TRY(make_key(tx, metrics[i].key, &key));
        TRY(store_exec(tx, "write a metric",
                       "INSERT INTO metrics (job_id, key_id, step, value) VALUES (?, ?, ?, ?)"
                       " ON CONFLICT DO UPDATE SET value = excluded.value",
                       V_INT(job_id), V_INT(key), V_INT(step), V_REAL(metrics[i].value)));
    }
    TRY(make_key(tx, "time", &key));
    return store_exec(tx, "write a step's time",
                      "INSERT INTO metrics (job_id, key_id, step, value) VALUES (?, ?, ?, ?)"
                      " ON CONFLICT DO NOTHING",
                      V_INT(job_id), V_INT(key), V_INT(step), V_REAL(time_s));
}

/* ---- reading ---- */

struct err *store_metrics_latest(struct store_tx *tx, int64_t job_id, struct store_latest **latest,
                                 size_t *count)
{
    struct {
        struct store_latest *items;
        size_t count;
    } list = {0};
    struct store_rows rows;
    TRY(store_query(tx, &rows, "read the latest metrics",
                    /* CROSS: keys first, each with one look into the metrics, never a scan. */
                    "SELECT k.name, m.step, m.value FROM metric_keys k CROSS JOIN metrics m"
                    " ON m.job_id = ?1 AND m.key_id = k.id AND m.step ="
                    " (SELECT max(step) FROM metrics WHERE job_id = ?1 AND key_id = k.id)"
                    " ORDER BY k.name",
                    V_INT(job_id)));
    while (store_next(&rows)) {
        struct store_latest *l = STORE_PUSH(&rows, &list);
        if (l)
            *l = (struct store_latest){store_text(&rows, 0), store_int(&rows, 1),
                                       store_real_or_nan(&rows, 2)};
    }
    *latest = list.items;
    *count = list.count;
    return store_finish(&rows);
}

struct err *store_metrics_keys(struct store_tx *tx, int64_t job_id, const char *const **keys,
                               size_t *count)
{
    struct {
        const char **items;
        size_t count;
    } list = {0};
    struct store_rows rows;
    TRY(store_query(tx, &rows, "list the keys of metrics",
                    "SELECT name FROM metric_keys k WHERE EXISTS"
                    " (SELECT 1 FROM metrics WHERE job_id = ? AND key_id = k.id) ORDER BY name",
                    V_INT(job_id)));
    while (store_next(&rows)) {
        const char **key = STORE_PUSH(&rows, &list);
        if (key)
            *key = store_text(&rows, 0);
    }
    *keys = list.items;
    *count = list.count;
    return store_finish(&rows);
}

/* ---- downsampling ---- */

#define LEAST_POINTS 8 /* both ends and two buckets of three */

struct point {
    int64_t step;
    double value;
};

/* What is kept of a range of steps. */
struct bucket {
    int64_t number;
    bool some, some_nan;
    struct point least, most, nan;
};

static void emit(struct store_series *s, struct point p)
{
    if (s->count && s->steps[s->count - 1] == p.step)
        return; /* one point can be least, most and first */
    s->steps[s->count] = p.step;
    s->values[s->count++] = p.value;
}

static void emit_bucket(struct store_series *s, const struct bucket *b)
{
    struct point kept[3];
    size_t count = 0;
    if (b->some) {
        kept[count++] = b->least;
        kept[count++] = b->most;
    }
    if (b->some_nan)
        kept[count++] = b->nan;
    for (size_t i = 1; i < count; i++) /* by step */
        for (size_t j = i; j > 0 && kept[j].step < kept[j - 1].step; j--) {
            struct point p = kept[j];
            kept[j] = kept[j - 1];
            kept[j - 1] = p;
        }
    for (size_t i = 0; i < count; i++)
        emit(s, kept[i]);
}

static void take(struct bucket *b, struct point p)
{
    if (isnan(p.value)) {
        if (!b->some_nan)
            b->nan = p;
        b->some_nan = true;
        return;
    }
    if (!b->some || p.value < b->least.value)
        b->least = p;
    if (!b->some || p.value > b->most.value)
        b->most = p;
    b->some = true;
}

struct extent {
    int64_t count, nans, first, last;
};

static struct err *measure(struct store_tx *tx, int64_t job_id, int64_t key, int64_t from,
                           int64_t to, struct extent *extent)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "measure a series",
                    "SELECT count(*), count(*) - count(value), min(step), max(step) FROM metrics"
                    " WHERE job_id = ? AND key_id = ? AND step BETWEEN ? AND ?",
                    V_INT(job_id), V_INT(key), V_INT(from), V_INT(to)));
    if (store_next(&rows))
        *extent = (struct extent){store_int(&rows, 0), store_int(&rows, 1), store_int(&rows, 2),
                                  store_int(&rows, 3)};
    return store_finish(&rows);
}

/* The first and the last point are kept for themselves, the others in buckets of equal width. */
static void sample(struct store_rows *rows, const struct extent *x, size_t buckets,
                   struct store_series *s)
{
    struct bucket b = {0};
    double width = ((double)x->last - (double)x->first + 1) / (double)buckets;
    while (store_next(rows)) {
        struct point p = {store_int(rows, 0), store_real_or_nan(rows, 1)};
        bool at_an_end = p.step == x->first || p.step == x->last;
        int64_t number = (int64_t)(((double)p.step - (double)x->first) / width);
        if (number >= (int64_t)buckets) /* rounding, of huge steps */
            number = (int64_t)buckets - 1;
        if (at_an_end || number != b.number) {
            emit_bucket(s, &b);
            b = (struct bucket){.number = number};
        }
        if (at_an_end)
            emit(s, p);
        else
            take(&b, p);
    }
}

static void copy(struct store_rows *rows, struct store_series *s)
{
    while (store_next(rows))
        emit(s, (struct point){store_int(rows, 0), store_real_or_nan(rows, 1)});
}

struct err *store_metrics_series(struct store_tx *tx, int64_t job_id, const char *key_name,
                                 int64_t from, int64_t to, size_t points,
                                 struct store_series *series)
{
    *series = (struct store_series){0};
    int64_t key;
    struct extent x = {0};
    TRY(find_key(tx, key_name, &key));
    if (key)
        TRY(measure(tx, job_id, key, from, to, &x));
    if (!x.count)
        return NULL;
    size_t total = (size_t)x.count;
    if (points && points < LEAST_POINTS)
        points = LEAST_POINTS;
    bool sampled = points && total > points;
    size_t room = sampled ? points : total;
    struct store_series s = {
        .steps = store_take(tx, room * sizeof *s.steps),
        .values = store_take(tx, room * sizeof *s.values),
        .total = total,
        .sampled = sampled,
    };
    if (!s.steps || !s.values)
        return err_no_memory();
    struct store_rows rows;
    TRY(store_query(tx, &rows, "read a series",
                    "SELECT step, value FROM metrics"
                    " WHERE job_id = ? AND key_id = ? AND step BETWEEN ? AND ? ORDER BY step",
                    V_INT(job_id), V_INT(key), V_INT(from), V_INT(to)));
    if (sampled)
        sample(&rows, &x, (points - 2) / (x.nans ? 3 : 2), &s);
    else
        copy(&rows, &s);
    *series = s;
    return store_finish(&rows);
}
