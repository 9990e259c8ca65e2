#include "store/attempts.h"
#include "store/sql.h"

static const char *const state_names[] = {
    [STORE_WORKER_LAUNCHING] = "launching",
    [STORE_WORKER_LAUNCHED] = "launched",
    [STORE_WORKER_RUNNING] = "running",
    [STORE_WORKER_ENDED] = "ended",
};
#define STATES 4

const char *store_worker_state_name(enum store_worker_state state)
{
    return state_names[state];
}

/* ---- reading ---- */

#define SELECT                                                                                     \
    "SELECT job_id, attempt, rank, node_id, gpu, state, secret_hash, pid, start_time, last_seq,"   \
    " device, threads, memory_bytes, exit_status, exit_kind, reason, created_s, started_s,"        \
    " ended_s FROM workers "

static void read_worker(struct store_rows *rows, struct store_worker *worker)
{
    *worker = (struct store_worker){
        .job_id = store_int(rows, 0),
        .attempt = store_int(rows, 1),
        .rank = store_int(rows, 2),
        .node_id = store_int(rows, 3),
        .gpu = store_index(rows, 4),
        .state = store_name(rows, 5, state_names, STATES, 0),
        .pid = store_int(rows, 7),
        .start_time = store_int(rows, 8),
        .last_seq = store_int(rows, 9),
        .device = store_text(rows, 10),
        .threads = store_int(rows, 11),
        .memory_bytes = store_int(rows, 12),
        .exit_status = store_text(rows, 13),
        .exit_kind = store_text(rows, 14),
        .reason = store_text(rows, 15),
        .created_s = store_real(rows, 16),
        .started_s = store_real(rows, 17),
        .ended_s = store_real(rows, 18),
    };
    store_bytes(rows, 6, worker->secret_hash, sizeof worker->secret_hash);
}

static struct err *no_worker(int64_t job_id, int64_t attempt, int64_t rank)
{
    return err_new(ERR_NOT_FOUND, "there is no rank %lld in attempt %lld of job %lld",
                   (long long)rank, (long long)attempt, (long long)job_id);
}

struct err *store_worker_get(struct store_tx *tx, int64_t job_id, int64_t attempt, int64_t rank,
                             struct store_worker *worker)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "read a worker",
                    SELECT "WHERE job_id = ? AND attempt = ? AND rank = ?", V_INT(job_id),
                    V_INT(attempt), V_INT(rank)));
    bool found = store_next(&rows);
    if (found)
        read_worker(&rows, worker);
    TRY(store_finish(&rows));
    return found ? NULL : no_worker(job_id, attempt, rank);
}

static struct err *read_list(struct store_rows *rows, struct store_workers *workers)
{
    *workers = (struct store_workers){0};
    while (store_next(rows)) {
        struct store_worker *worker = STORE_PUSH(rows, workers);
        if (worker)
            read_worker(rows, worker);
    }
    return store_finish(rows);
}

struct err *store_workers_list(struct store_tx *tx, int64_t job_id, int64_t attempt,
                               struct store_workers *workers)
{
    struct store_rows rows;
    if (attempt)
        TRY(store_query(tx, &rows, "list workers",
                        SELECT "WHERE job_id = ? AND attempt = ? ORDER BY rank", V_INT(job_id),
                        V_INT(attempt)));
    else
        TRY(store_query(tx, &rows, "list workers", SELECT "WHERE job_id = ? ORDER BY attempt, rank",
                        V_INT(job_id)));
    return read_list(&rows, workers);
}

struct err *store_workers_live(struct store_tx *tx, struct store_workers *workers)
{
    struct store_rows rows;
    TRY(store_query(tx, &rows, "list living workers",
                    SELECT "WHERE state <> 'ended' ORDER BY job_id, attempt, rank"));
    return read_list(&rows, workers);
}

/* ---- writing ---- */

struct err *store_worker_insert(struct store_tx *tx, const struct store_worker *worker,
                                double now_s)
{
    return store_exec(tx, "write a worker",
                      "INSERT INTO workers (job_id, attempt, rank, node_id, gpu, state,"
                      " secret_hash, created_s) VALUES (?, ?, ?, ?, ?, 'launching', ?, ?)",
                      V_INT(worker->job_id), V_INT(worker->attempt), V_INT(worker->rank),
                      V_INT(worker->node_id), V_INDEX(worker->gpu),
                      V_BLOB(worker->secret_hash, sizeof worker->secret_hash), V_REAL(now_s));
}

struct err *store_worker_launched(struct store_tx *tx, int64_t job_id, int64_t attempt,
                                  int64_t rank, int64_t pid, int64_t start_time)
{
    int64_t changed;
    TRY(store_change(tx, "write a worker's process", &changed,
                     "UPDATE workers SET pid = ?, start_time = ?,"
                     " state = iif(state = 'launching', 'launched', state)"
                     " WHERE job_id = ? AND attempt = ? AND rank = ?",
                     V_INT(pid), V_INT(start_time), V_INT(job_id), V_INT(attempt), V_INT(rank)));
    return changed ? NULL : no_worker(job_id, attempt, rank);
}

struct err *store_worker_started(struct store_tx *tx, int64_t job_id, int64_t attempt, int64_t rank,
                                 const char *device, int64_t threads, int64_t memory_bytes,
                                 double now_s)
{
    int64_t changed;
    TRY(store_change(tx, "write a worker's start", &changed,
                     "UPDATE workers SET device = ?, threads = ?, memory_bytes = ?, started_s = ?,"
                     " state = iif(state = 'ended', state, 'running')"
                     " WHERE job_id = ? AND attempt = ? AND rank = ?",
                     V_TEXT(device), V_INT(threads), V_INT(memory_bytes), V_REAL(now_s),
                     V_INT(job_id), V_INT(attempt), V_INT(rank)));
    return changed ? NULL : no_worker(job_id, attempt, rank);
}

struct err *store_worker_end(struct store_tx *tx, int64_t job_id, int64_t attempt, int64_t rank,
                             const char *exit_status, const char *exit_kind, const char *reason,
                             double now_s)
{
    struct store_worker worker;
    TRY(store_worker_get(tx, job_id, attempt, rank, &worker));
    if (worker.state == STORE_WORKER_ENDED)
        return NULL;
    return store_exec(tx, "end a worker",
                      "UPDATE workers SET state = 'ended', exit_status = ?, exit_kind = ?,"
                      " reason = ?, ended_s = ? WHERE job_id = ? AND attempt = ? AND rank = ?",
                      V_TEXT(exit_status), V_TEXT(exit_kind), V_TEXT(reason), V_REAL(now_s),
                      V_INT(job_id), V_INT(attempt), V_INT(rank));
}

/* ---- records ---- */

enum store_verdict store_judge_record(int64_t seq, int64_t last_seq)
{
    if (seq <= last_seq)
        return STORE_RECORD_OLD;
    return seq == last_seq + 1 ? STORE_RECORD_NEW : STORE_RECORD_GAP;
}

/* An attempt ends only when its journals are read and its workers dead, and no other begins
 * before; so the attempt's own state says whether a record still counts. */
struct err *store_worker_take_record(struct store_tx *tx, int64_t job_id, int64_t attempt,
                                     int64_t rank, int64_t seq, enum store_verdict *verdict,
                                     int64_t *last_seq)
{
    struct store_attempt a;
    struct store_worker w;
    TRY(store_attempt_get(tx, job_id, attempt, &a));
    TRY(store_worker_get(tx, job_id, attempt, rank, &w));
    *last_seq = w.last_seq;
    *verdict =
        a.state == STORE_ATTEMPT_ENDED ? STORE_RECORD_STALE : store_judge_record(seq, w.last_seq);
    if (*verdict != STORE_RECORD_NEW)
        return NULL;
    *last_seq = seq;
    return store_exec(tx, "count a record",
                      "UPDATE workers SET last_seq = ?"
                      " WHERE job_id = ? AND attempt = ? AND rank = ?",
                      V_INT(seq), V_INT(job_id), V_INT(attempt), V_INT(rank));
}
