/* What the API asks of the daemon: the only line from api/ to control/, which fills it in.
 *
 * The API reads and writes the database by itself; the daemon acts on what stands there. So most of
 * what happens here is "look again". All functions are called on the loop thread.
 */
#ifndef API_CONTROL_H
#define API_CONTROL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Gauges and counters for Prometheus. */
struct api_counters {
    double started_s;     /* start of this daemon, seconds since 1970 */
    int64_t slots_in_use; /* on CPUs */
    int64_t gpus_in_use;
    int64_t workers;           /* processes alive: ranks */
    int64_t tasks;             /* processes alive: tasks */
    int64_t workers_connected; /* of both, those that hold a connection */
    int64_t workers_started_total;
    int64_t workers_lost_total; /* ended without an exit file */
    int64_t records_total;      /* of workers, committed */
};

struct api_control {
    void *user;
    int64_t cpu_slots;
    int64_t gpu_slots;
    size_t slot_bytes;        /* memory of the node over its slots */
    const char *no_cuda;      /* a sentence: why a CUDA job cannot run here; NULL: it can */
    const char *const *roots; /* directories under which a spec's paths must lie, resolved */
    size_t root_count;

    /* The database holds something new to act on: a job, an intent, a task. */
    void (*changed)(void *user);
    /* The ranks of the job shall write a checkpoint behind their present step. False: none of them
     * is there. */
    bool (*checkpoint)(void *user, int64_t job_id);
    /* NULL: ready for work; otherwise a sentence that says why not. */
    const char *(*not_ready)(void *user);
    void (*counters)(void *user, struct api_counters *out);
};

#endif
