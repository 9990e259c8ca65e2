#include "store/tasks.h"

#include "store/sql.h"

static const char *const type_names[STORE_TASK_TYPES] = {
    [STORE_TASK_PREPARE] = "prepare",   [STORE_TASK_EXPORT] = "export",
    [STORE_TASK_SAMPLE] = "sample",     [STORE_TASK_ACCEPTANCE] = "acceptance",
    [STORE_TASK_FEATURES] = "features",
};

static const char *const state_names[STORE_TASK_STATES] = {
    [STORE_TASK_QUEUED] = "queued",       [STORE_TASK_RUNNING] = "running",
    [STORE_TASK_SUCCEEDED] = "succeeded", [STORE_TASK_FAILED] = "failed",
    [STORE_TASK_CANCELLED] = "cancelled",
};

#define TO(state) STORE_TASK_MASK(STORE_TASK_##state)
static const unsigned legal[STORE_TASK_STATES] = {
    [STORE_TASK_QUEUED] = TO(RUNNING) | TO(FAILED) | TO(CANCELLED),
    [STORE_TASK_RUNNING] = TO(QUEUED) | TO(SUCCEEDED) | TO(FAILED) | TO(CANCELLED),
};

const char *store_task_type_name(enum store_task_type type)
{
    return type_names[type];
}

bool store_task_type_parse(const char *name, enum store_task_type *type)
{
    int index;
    bool found = store_name_parse(name, type_names, STORE_TASK_TYPES, &index);
    if (found)
        *type = index;
    return found;
}

const char *store_task_state_name(enum store_task_state state)
{
    return state_names[state];
}

bool store_task_state_parse(const char *name, enum store_task_state *state)
{
    int index;
    bool found = store_name_parse(name, state_names, STORE_TASK_STATES, &index);
    if (found)
        *state = index;
    return found;
}

/* ---- reading ---- */

#define SELECT                                                                                     \
    "SELECT id, type, state, cancel_requested, parameters_json, result_json, reason, job_id,"      \
    " checkpoint_id, dataset_id, done, total, unit, created_by, created_s, started_s, finished_s," \
    " version, node_id, gpu, pid, start_time, last_seq, secret_hash, directory FROM tasks"

static void read_task(struct store_rows *rows, struct store_task *task)
{
    *task = (struct store_task){
        .id = store_int(rows, 0),
        .type = store_name(rows, 1, type_names, STORE_TASK_TYPES, 0),
        .state = store_name(rows, 2, state_names, STORE_TASK_STATES, 0),
        .cancel_requested = store_int(rows, 3),
        .parameters_json = store_text(rows, 4),
        .result_json = store_text(rows, 5),
        .reason = store_text(rows, 6),
        .job_id = store_int(rows, 7),
        .checkpoint_id = store_int(rows, 8),
        .dataset_id = store_int(rows, 9),
        .done = store_int(rows, 10),
        .total = store_int(rows, 11),
        .unit = store_text(rows, 12),
        .created_by = store_text(rows, 13),
        .created_s = store_real(rows, 14),
        .started_s = store_real(rows, 15),
        .finished_s = store_real(rows, 16),
        .version = store_int(rows, 17),
        .node_id = store_int(rows, 18),
        .gpu = store_index(rows, 19),
        .pid = store_int(rows, 20),
        .start_time = store_int(rows, 21),
        .last_seq = store_int(rows, 22),
        .directory = store_text(rows, 24),
    };
    store_bytes(rows, 23, task->secret_hash, sizeof task->secret_hash);
}

static struct err *no_task(int64_t id)
{
    return err_new(ERR_NOT_FOUND, "there is no task %lld", (long long)id);
}

struct err *store_task_get(struct store_tx *tx, int64_t id, struct store_task *task)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "read a task", SELECT " WHERE id = ?", V_INT(id)));
    bool found = store_next(&rows);
    if (found)
        read_task(&rows, task);
    TRY(store_finish(&rows));
    return found ? NULL : no_task(id);
}

struct err *store_tasks_list(struct store_tx *tx, const struct store_task_filter *filter,
                             const struct store_page *page, struct store_tasks *tasks)
{
    *tasks = (struct store_tasks){0};
    struct store_where where;
    store_where_begin(&where, SELECT);
    if (filter) {
        store_where_in(&where, "state", filter->states, state_names, STORE_TASK_STATES);
        store_where_in(&where, "type", filter->types, type_names, STORE_TASK_TYPES);
        if (filter->job_id)
            store_where_and(&where, "job_id = ?", V_INT(filter->job_id));
        if (filter->checkpoint_id)
            store_where_and(&where, "checkpoint_id = ?", V_INT(filter->checkpoint_id));
    }
    struct store_rows rows;
    TRY(store_where_page(tx, &where, page, &rows, "list tasks"));
    while (store_next(&rows)) {
        struct store_task *task = STORE_PUSH(&rows, tasks);
        if (task)
            read_task(&rows, task);
    }
    STORE_CUT_PAGE(tasks, page->limit);
    return store_finish(&rows);
}

/* ---- writing ---- */

struct err *store_task_insert(struct store_tx *tx, const struct store_task *task, double now_s,
                              int64_t *id)
{
    TRY(store_exec(tx, "write a task",
                   "INSERT INTO tasks (type, state, parameters_json, job_id, checkpoint_id,"
                   " created_by, created_s) VALUES (?, 'queued', ?, ?, ?, ?, ?)",
                   V_TEXT(type_names[task->type]), V_TEXT(task->parameters_json),
                   V_ID(task->job_id), V_ID(task->checkpoint_id), V_TEXT(task->created_by),
                   V_REAL(now_s)));
    *id = sqlite3_last_insert_rowid(tx->db);
    return NULL;
}

static struct err *check_move(const struct store_task *task, unsigned from,
                              enum store_task_state to)
{
    bool expected = !from || (from & STORE_TASK_MASK(task->state));
    if (expected && (legal[task->state] & STORE_TASK_MASK(to)))
        return NULL;
    return err_new(ERR_CONFLICT, "task %lld is %s and cannot become %s", (long long)task->id,
                   state_names[task->state], state_names[to]);
}

struct err *store_task_start(struct store_tx *tx, int64_t id, int64_t node_id, int64_t gpu,
                             const uint8_t secret_hash[STORE_SECRET_HASH_BYTES],
                             const char *directory, double now_s)
{
    struct store_task task;
    TRY(store_task_get(tx, id, &task));
    TRY(check_move(&task, TO(QUEUED), STORE_TASK_RUNNING));
    return store_exec(tx, "start a task",
                      "UPDATE tasks SET state = 'running', node_id = ?2, gpu = ?3,"
                      " secret_hash = ?4, directory = ?5, started_s = ?6, reason = NULL,"
                      " pid = NULL, start_time = NULL, last_seq = 0, done = 0, total = 0,"
                      " version = version + 1 WHERE id = ?1",
                      V_INT(id), V_INT(node_id), V_INDEX(gpu),
                      V_BLOB(secret_hash, STORE_SECRET_HASH_BYTES), V_TEXT(directory),
                      V_REAL(now_s));
}

struct err *store_task_launched(struct store_tx *tx, int64_t id, int64_t pid, int64_t start_time)
{
    int64_t changed;
    TRY(store_change(tx, "write a task's process", &changed,
                     "UPDATE tasks SET pid = ?, start_time = ? WHERE id = ?", V_INT(pid),
                     V_INT(start_time), V_INT(id)));
    return changed ? NULL : no_task(id);
}

struct err *store_task_progress(struct store_tx *tx, int64_t id, int64_t done, int64_t total,
                                const char *unit)
{
    int64_t changed;
    TRY(store_change(tx, "write a task's progress", &changed,
                     "UPDATE tasks SET done = ?, total = ?, unit = ?, version = version + 1"
                     " WHERE id = ?",
                     V_INT(done), V_INT(total), V_TEXT(unit), V_INT(id)));
    return changed ? NULL : no_task(id);
}

struct err *store_task_set_dataset(struct store_tx *tx, int64_t id, int64_t dataset_id)
{
    int64_t changed;
    TRY(store_change(tx, "write a task's dataset", &changed,
                     "UPDATE tasks SET dataset_id = ?, version = version + 1 WHERE id = ?",
                     V_ID(dataset_id), V_INT(id)));
    return changed ? NULL : no_task(id);
}

struct err *store_task_transition(struct store_tx *tx, int64_t id, unsigned from,
                                  enum store_task_state to, const char *result_json,
                                  const char *reason, double now_s)
{
    struct store_task task;
    TRY(store_task_get(tx, id, &task));
    TRY(check_move(&task, from, to));
    if (to == STORE_TASK_RUNNING)
        return err_new(ERR_INTERNAL, "task %lld runs by store_task_start only", (long long)id);
    bool over = STORE_TASK_MASK(to) & STORE_TASK_OVER;
    return store_exec(tx, "write a task's state",
                      "UPDATE tasks SET state = ?2, result_json = ?3, reason = ?4, finished_s = ?5,"
                      " version = version + 1 WHERE id = ?1",
                      V_INT(id), V_TEXT(state_names[to]), V_TEXT(result_json), V_TEXT(reason),
                      over ? V_REAL(now_s) : V_NULL);
}

struct err *store_task_cancel(struct store_tx *tx, int64_t id, const char *reason, double now_s)
{
    struct store_task task;
    TRY(store_task_get(tx, id, &task));
    TRY(check_move(&task, 0, STORE_TASK_CANCELLED));
    if (task.state == STORE_TASK_QUEUED)
        return store_task_transition(tx, id, 0, STORE_TASK_CANCELLED, NULL, reason, now_s);
    return store_exec(tx, "ask a task to end",
                      "UPDATE tasks SET cancel_requested = 1, reason = ?, version = version + 1"
                      " WHERE id = ?",
                      V_TEXT(reason), V_INT(id));
}

struct err *store_task_take_record(struct store_tx *tx, int64_t id, int64_t seq,
                                   enum store_verdict *verdict, int64_t *last_seq)
{
    struct store_task task;
    TRY(store_task_get(tx, id, &task));
    *last_seq = task.last_seq;
    *verdict = task.state == STORE_TASK_RUNNING ? store_judge_record(seq, task.last_seq)
                                                : STORE_RECORD_STALE;
    if (*verdict != STORE_RECORD_NEW)
        return NULL;
    *last_seq = seq;
    return store_exec(tx, "count a task's record", "UPDATE tasks SET last_seq = ? WHERE id = ?",
                      V_INT(seq), V_INT(id));
}
