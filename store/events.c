#include "store/events.h"

#include "store/sql.h"

struct err *store_event_insert(struct store_tx *tx, const struct store_event *event, int64_t *id)
{
    TRY(store_exec(tx, "write an event",
                   "INSERT INTO job_events (job_id, attempt, rank, time_s, type, from_state,"
                   " to_state, message, data_json) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                   V_INT(event->job_id), V_ID(event->attempt), V_INDEX(event->rank),
                   V_REAL(event->time_s), V_TEXT(event->type), V_TEXT(event->from),
                   V_TEXT(event->to), V_TEXT(event->message), V_TEXT(event->data_json)));
    if (id)
        *id = sqlite3_last_insert_rowid(tx->db);
    return NULL;
}

#define SELECT                                                                                     \
    "SELECT id, job_id, attempt, rank, time_s, type, from_state, to_state, message, data_json"     \
    " FROM job_events "

struct err *store_events_list(struct store_tx *tx, int64_t job_id, int64_t after_id, int limit,
                              struct store_events *events)
{
    *events = (struct store_events){0};
    const char *what = "list events";
    struct store_rows rows;
    if (job_id)
        TRY(store_query(tx, &rows, what,
                        SELECT "WHERE job_id = ? AND id > ? ORDER BY id LIMIT ? + 1", V_INT(job_id),
                        V_INT(after_id), V_INT(limit)));
    else
        TRY(store_query(tx, &rows, what, SELECT "WHERE id > ? ORDER BY id LIMIT ? + 1",
                        V_INT(after_id), V_INT(limit)));
    while (store_next(&rows)) {
        struct store_event *e = STORE_PUSH(&rows, events);
        if (!e)
            break;
        *e = (struct store_event){
            .id = store_int(&rows, 0),
            .job_id = store_int(&rows, 1),
            .attempt = store_int(&rows, 2),
            .rank = store_index(&rows, 3),
            .time_s = store_real(&rows, 4),
            .type = store_text(&rows, 5),
            .from = store_text(&rows, 6),
            .to = store_text(&rows, 7),
            .message = store_text(&rows, 8),
            .data_json = store_text(&rows, 9),
        };
    }
    STORE_CUT_PAGE(events, limit);
    return store_finish(&rows);
}

struct err *store_events_last(struct store_tx *tx, int64_t *id)
{
    *id = 0;
    struct store_rows rows;
    TRY(store_query(tx, &rows, "find the last event", "SELECT max(id) FROM job_events"));
    if (store_next(&rows))
        *id = store_int(&rows, 0);
    return store_finish(&rows);
}
