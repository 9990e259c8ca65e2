#include "daemon/worker/checkpoint/writer.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/base/clock.h"
#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "daemon/worker/checkpoint/commit.h"
#include "store/checkpoint_directory.h"
#include "store/safetensors.h"

/* Between two looks for the other ranks. */
#define FIRST_PAUSE_S 0.002
#define LONGEST_PAUSE_S 0.25
#define YEAR_S 3.2e7

enum { WEIGHTS, M, V, KINDS };
static const char *const kind_names[KINDS] = {"weights", "m", "v"};

struct name {
    char text[sizeof((struct parameter *)0)->name + 16]; /* "weights/model.norm.weight" */
};

struct checkpoint_writer {
    const struct kernels *kernels;
    char *directory, *mode;
    cJSON *spec;
    struct checkpoint_facts facts; /* the step's: of the latest checkpoint_begin */
    int rank;
    const struct parameters *parameters;
    int64_t begin, count;
    double patience_s;

    float *memory; /* [KINDS, count] */
    struct checkpoint_snapshot snapshot;
    struct safetensor *tensors; /* [n_tensors], into memory */
    struct name *names;         /* [n_tensors] */
    size_t n_tensors;
    cJSON *ranges; /* parameter -> [begin, end] of its elements that are here */
    char *ranges_text;

    /* Of the step loop and the thread. */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool leaving;
    enum checkpoint_phase phase;
    int64_t number; /* checkpoints begun in this attempt */
    double began_s, began_unix_s, ended_s;
    char *manifest;
    struct err *error;
};

/* ---- The thread ---- */

static struct err *write_shard(struct checkpoint_writer *w, const struct commit *c)
{
    const struct safetensors_pair metadata[] = {
        {"checkpoint", c->id},
        {"ranges", w->ranges_text},
    };
    TRY(safetensors_write(c->shard, w->tensors, w->n_tensors, metadata,
                          sizeof metadata / sizeof *metadata));
    return commit_shard(c, w->began_unix_s, w->ranges);
}

/* In so many seconds, or a year. */
static struct timespec in_s(double seconds)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t nanoseconds = t.tv_nsec + (int64_t)((seconds < YEAR_S ? seconds : YEAR_S) * 1e9);
    t.tv_sec += nanoseconds / 1000000000;
    t.tv_nsec = nanoseconds % 1000000000;
    return t;
}

/* Sleeps; true once the writer is to be destroyed. */
static bool pause_unless_leaving(struct checkpoint_writer *w, double pause_s)
{
    struct timespec until = in_s(pause_s);
    pthread_mutex_lock(&w->mutex);
    int waited = 0;
    while (!w->leaving && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&w->changed, &w->mutex, &until);
    bool leaving = w->leaving;
    pthread_mutex_unlock(&w->mutex);
    return leaving;
}

/* A wait for other ranks, in ever longer pauses. */
struct waiting {
    double began_s, pause_s;
};

static struct waiting begin_waiting(void)
{
    return (struct waiting){.began_s = clock_s(), .pause_s = FIRST_PAUSE_S};
}

/* One more pause; `missing`: what of which rank is waited for. */
static struct err *go_on_waiting(struct checkpoint_writer *w, struct waiting *wait,
                                 const char *missing, int rank, bool *leaving)
{
    if (clock_s() - wait->began_s > w->patience_s)
        return err_new(ERR_TIMEOUT, "the %s of rank %d did not come within %g s", missing, rank,
                       w->patience_s);
    *leaving = pause_unless_leaving(w, wait->pause_s);
    if (*leaving)
        return err_new(ERR_ABORTED, "rank %d does not wait for the other ranks any more", w->rank);
    wait->pause_s = fmin(wait->pause_s * 2, LONGEST_PAUSE_S);
    return NULL;
}

/* Returns when there is a place for this rank's shard, or *done: it needs none. */
static struct err *enter(struct checkpoint_writer *w, struct commit *c, bool *done, bool *leaving)
{
    struct waiting wait = begin_waiting();
    bool entered;
    for (;;) {
        TRY(commit_enter(c, &entered));
        TRY(commit_look(c, done)); /* an older attempt may have it, or another rank gave it up */
        if (entered || *done)
            return NULL;
        TRY(go_on_waiting(w, &wait, "directory", 0, leaving));
    }
}

/* This rank's shard is on disk: returns when all are, and the checkpoint has its name. */
static struct err *see_it_committed(struct checkpoint_writer *w, const struct commit *c,
                                    bool *leaving)
{
    struct waiting wait = begin_waiting();
    for (;;) {
        bool done;
        int missing;
        TRY(commit_look(c, &done));
        if (done)
            return NULL;
        TRY(commit_try(c, &missing));
        if (missing >= 0)
            TRY(go_on_waiting(w, &wait, "shard", missing, leaving));
    }
}

static struct err *write_parts(struct checkpoint_writer *w, struct commit *c, bool *leaving)
{
    bool done;
    TRY(enter(w, c, &done, leaving));
    if (done)
        return NULL;
    TRY(write_shard(w, c));
    return see_it_committed(w, c, leaving);
}

/* What is left of attempts and checkpoints before this one is in nobody's way but takes space. */
static void sweep(struct checkpoint_writer *w)
{
    if (w->rank == 0)
        err_free(checkpoint_sweep(w->directory, w->facts.attempt, w->number));
}

/* Between the ranks' renames an error may only mean that another rank was faster, with the commit
 * or with giving up: what is on disk decides. */
static struct err *settle(const struct commit *c, struct err *e)
{
    bool done = false;
    struct err *others = commit_look(c, &done);
    if (!done) {
        commit_abort(c, e);
        struct err *after = commit_look(c, &done);
        err_free(after); /* this rank's own, or the others' as before */
    }
    if (done) {
        err_free(e);
        e = NULL;
    } else if (others && err_kind(others) == ERR_ABORTED) {
        err_free(e);
        return others;
    }
    err_free(others);
    return e;
}

static struct err *write_checkpoint(struct checkpoint_writer *w)
{
    struct commit c;
    bool leaving = false;
    sweep(w);
    struct err *e = commit_init(&c, w->directory, w->rank, w->number, &w->facts, w->parameters);
    if (!e)
        e = write_parts(w, &c, &leaving);
    if (e && !leaving)
        e = settle(&c, e);
    if (!e)
        commit_clear(&c);
    if (!e && asprintf(&w->manifest, "%s/" CHECKPOINT_MANIFEST, c.final) < 0) {
        w->manifest = NULL;
        e = err_no_memory();
    }
    commit_free(&c);
    return e;
}

static void *run(void *argument)
{
    struct checkpoint_writer *w = argument;
    pthread_mutex_lock(&w->mutex);
    for (;;) {
        while (!w->leaving && w->phase != CHECKPOINT_WRITING)
            pthread_cond_wait(&w->changed, &w->mutex);
        if (w->phase != CHECKPOINT_WRITING)
            break;
        pthread_mutex_unlock(&w->mutex);
        struct err *e = write_checkpoint(w);
        pthread_mutex_lock(&w->mutex);
        w->error = e;
        w->phase = e ? CHECKPOINT_FAILED : CHECKPOINT_DONE;
        w->ended_s = clock_s();
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* ---- Set-up ---- */

static struct err *add_piece(struct checkpoint_writer *w, const struct parameter *p, int64_t begin,
                             int64_t end)
{
    for (int kind = 0; kind < KINDS; kind++) {
        struct name *name = &w->names[w->n_tensors];
        snprintf(name->text, sizeof name->text, "%s/%s", kind_names[kind], p->name);
        w->tensors[w->n_tensors++] = (struct safetensor){
            .name = name->text,
            .dtype = SAFETENSORS_F32,
            .dims = 1,
            .shape = {end - begin},
            .data = w->memory + kind * w->count + (begin - w->begin),
        };
    }
    const double range[2] = {(double)(begin - p->offset), (double)(end - p->offset)};
    cJSON *array = cJSON_CreateDoubleArray(range, 2);
    if (cJSON_AddItemToObject(w->ranges, p->name, array))
        return NULL;
    cJSON_Delete(array);
    return err_no_memory();
}

/* The parts of parameters that lie in this rank's range. */
static struct err *cut(struct checkpoint_writer *w)
{
    size_t most = (size_t)w->parameters->n * KINDS;
    w->tensors = calloc(most, sizeof *w->tensors);
    w->names = calloc(most, sizeof *w->names);
    w->ranges = cJSON_CreateObject();
    if (!w->tensors || !w->names || !w->ranges)
        return err_no_memory();
    for (int i = 0; i < w->parameters->n; i++) {
        const struct parameter *p = &w->parameters->items[i];
        int64_t begin = p->offset > w->begin ? p->offset : w->begin;
        int64_t end = p->offset + p->count;
        if (end > w->begin + w->count)
            end = w->begin + w->count;
        if (begin < end)
            TRY(add_piece(w, p, begin, end));
    }
    w->ranges_text = json_print(w->ranges);
    return w->ranges_text ? NULL : err_no_memory();
}

static struct err *take_memory(struct checkpoint_writer *w)
{
    size_t bytes = checkpoint_writer_memory_bytes(w);
    TRY(w->kernels->host_alloc(bytes, (void **)&w->memory));
    memset(w->memory, 0, bytes); /* the pages now, not at the first checkpoint */
    w->snapshot.weights = w->memory + WEIGHTS * w->count;
    w->snapshot.m = w->memory + M * w->count;
    w->snapshot.v = w->memory + V * w->count;
    return NULL;
}

static struct err *make_directory(const char *path)
{
    if (mkdir(path, 0777) == 0)
        return file_sync_parent(path);
    return errno == EEXIST ? NULL : err_errno(errno, "%s", path);
}

/* Signals go to the threads that know what to do with them. */
static struct err *start_thread(struct checkpoint_writer *w)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return err_errno(error, "no thread to write checkpoints");
    w->has_thread = true;
    return NULL;
}

static struct err *init(struct checkpoint_writer *w, const struct checkpoint_options *o)
{
    w->directory = strdup(o->directory);
    w->mode = strdup(o->facts.mode);
    w->spec = cJSON_Duplicate(o->facts.spec, true);
    if (!w->directory || !w->mode || !w->spec)
        return err_no_memory();
    w->facts.mode = w->mode;
    w->facts.spec = w->spec;
    TRY(make_directory(w->directory));
    TRY(take_memory(w));
    TRY(cut(w));
    return start_thread(w);
}

struct err *checkpoint_writer_create(const struct checkpoint_options *o,
                                     struct checkpoint_writer **out)
{
    if (o->facts.world > CHECKPOINT_MAX_WORLD)
        return err_new(ERR_INVALID, "checkpoints are written by at most %d ranks",
                       CHECKPOINT_MAX_WORLD);
    struct checkpoint_writer *w = calloc(1, sizeof *w);
    if (!w)
        return err_no_memory();
    w->kernels = o->kernels;
    w->facts = o->facts;
    w->rank = o->rank;
    w->parameters = o->parameters;
    w->begin = o->begin;
    w->count = o->count;
    w->patience_s = o->patience_s;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    struct err *e = init(w, o);
    if (e)
        checkpoint_writer_destroy(w);
    else
        *out = w;
    return e;
}

void checkpoint_writer_destroy(struct checkpoint_writer *w)
{
    if (!w)
        return;
    if (w->has_thread) {
        pthread_mutex_lock(&w->mutex);
        w->leaving = true;
        pthread_cond_broadcast(&w->changed);
        pthread_mutex_unlock(&w->mutex);
        pthread_join(w->thread, NULL);
    }
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    err_free(w->error);
    free(w->manifest);
    cJSON_free(w->ranges_text);
    cJSON_Delete(w->ranges);
    free(w->names);
    free(w->tensors);
    if (w->memory)
        w->kernels->host_release(w->memory);
    cJSON_Delete(w->spec);
    free(w->mode);
    free(w->directory);
    free(w);
}

size_t checkpoint_writer_memory_bytes(const struct checkpoint_writer *w)
{
    return KINDS * (size_t)w->count * sizeof(float);
}

/* ---- The step loop's side ---- */

/* Holds the mutex. */
static void tell(struct checkpoint_writer *w, struct checkpoint_status *out)
{
    *out = (struct checkpoint_status){.phase = w->phase};
    if (w->phase == CHECKPOINT_IDLE)
        return;
    out->step = w->facts.step;
    out->elapsed_s = (w->phase == CHECKPOINT_WRITING ? clock_s() : w->ended_s) - w->began_s;
    if (w->phase == CHECKPOINT_WRITING)
        return;
    out->manifest = w->manifest;
    out->error = w->error;
    w->manifest = NULL;
    w->error = NULL;
    w->phase = CHECKPOINT_IDLE;
}

void checkpoint_poll(struct checkpoint_writer *w, struct checkpoint_status *out)
{
    checkpoint_wait(w, 0, out);
}

void checkpoint_wait(struct checkpoint_writer *w, double timeout_s, struct checkpoint_status *out)
{
    struct timespec until = in_s(timeout_s);
    pthread_mutex_lock(&w->mutex);
    int waited = 0;
    while (w->phase == CHECKPOINT_WRITING && waited != ETIMEDOUT)
        waited = pthread_cond_timedwait(&w->changed, &w->mutex, &until);
    tell(w, out);
    pthread_mutex_unlock(&w->mutex);
}

static bool is_idle(struct checkpoint_writer *w)
{
    pthread_mutex_lock(&w->mutex);
    bool idle = w->phase == CHECKPOINT_IDLE;
    pthread_mutex_unlock(&w->mutex);
    return idle;
}

const struct checkpoint_snapshot *checkpoint_snapshot(struct checkpoint_writer *w)
{
    return is_idle(w) ? &w->snapshot : NULL;
}

struct err *checkpoint_begin(struct checkpoint_writer *w, int64_t step, int64_t optimizer_step,
                             int64_t data_position)
{
    if (!is_idle(w))
        return err_new(ERR_CONFLICT, "the checkpoint of step %" PRId64 " is still being written",
                       w->facts.step);
    pthread_mutex_lock(&w->mutex);
    w->facts.step = step;
    w->facts.optimizer_step = optimizer_step;
    w->facts.data_position = data_position;
    w->number++;
    w->began_s = clock_s();
    w->began_unix_s = clock_unix_s();
    w->phase = CHECKPOINT_WRITING;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}
