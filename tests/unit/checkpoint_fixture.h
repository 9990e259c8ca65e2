/* Checkpoints of a toy model: its parameters, a state that is a function of element and step, ranks
 * as threads that write it, and the check that a directory holds that state, whoever reads it. */
#ifndef TESTS_CHECKPOINT_FIXTURE_H
#define TESTS_CHECKPOINT_FIXTURE_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/base/philox.h"
#include "daemon/worker/checkpoint/reader.h"
#include "daemon/worker/checkpoint/writer.h"
#include "store/checkpoint_directory.h"

/* The expression succeeds. */
#define OK(expression) fixture_ok(expression, #expression, __FILE__, __LINE__)
/* The expression fails with this kind, and its message has this text in it. */
#define FAILS(expression, kind, text)                                                              \
    fixture_fails(expression, kind, text, #expression, __FILE__, __LINE__)

static inline void fixture_ok(struct err *e, const char *what, const char *file, int line)
{
    if (!e)
        return;
    print_error("%s: %s\n", what, err_message(e));
    err_free(e);
    _fail(file, line);
}

static inline void fixture_fails(struct err *e, enum err_kind kind, const char *text,
                                 const char *what, const char *file, int line)
{
    bool right = e && err_kind(e) == kind && strstr(err_message(e), text);
    if (!right)
        print_error("%s: %s (%s) instead of %s with \"%s\"\n", what, e ? err_message(e) : "success",
                    e ? err_kind_name(err_kind(e)) : "none", err_kind_name(kind), text);
    err_free(e);
    if (!right)
        _fail(file, line);
}

#define FIXTURE_JOB 7
#define FIXTURE_SEED 11
#define FIXTURE_RANKS 6
#define FIXTURE_WAIT_S 60.0
#define FIXTURE_ELEMENTS 192

/* A matrix, a gap, a vector, a gap, two matrices of one group, a gap at the end. */
static struct parameter fixture_items[] = {
    {.name = "embed.weight", .dims = 2, .shape = {7, 5}, .offset = 0, .count = 35},
    {.name = "norm.weight", .dims = 1, .shape = {6}, .offset = 64, .count = 6},
    {.name = "q.weight", .dims = 2, .shape = {4, 6}, .offset = 128, .count = 24},
    {.name = "k.weight", .dims = 2, .shape = {2, 6}, .offset = 152, .count = 12},
};
static const struct parameters fixture_parameters = {
    .n = sizeof fixture_items / sizeof *fixture_items,
    .items = fixture_items,
    .count = FIXTURE_ELEMENTS,
};

/* malloc would do: the writer asks for no more of a backend. */
static inline struct err *fixture_alloc(size_t bytes, void **out)
{
    *out = malloc(bytes);
    return *out ? NULL : err_no_memory();
}
static const struct kernels fixture_kernels = {.host_alloc = fixture_alloc, .host_release = free};

static inline int64_t fixture_count(int world)
{
    return (FIXTURE_ELEMENTS + world - 1) / world;
}

/* Element `i` of the flat buffer at a step, of weights, m, v (kind 0, 1, 2); 0 in the gaps. */
static inline float fixture_value(int64_t i, int64_t step, int kind)
{
    for (int p = 0; p < fixture_parameters.n; p++)
        if (i >= fixture_items[p].offset && i < fixture_items[p].offset + fixture_items[p].count)
            return philox_normal(FIXTURE_SEED, PHILOX_INIT, (uint64_t)step, (uint64_t)kind,
                                 (uint64_t)i);
    return 0;
}

static inline int64_t fixture_position(int64_t step)
{
    return step * 4;
}

/* One rank, and how it went. */
struct fixture_rank {
    const char *directory;
    int64_t attempt, step;
    int64_t data_position; /* as fixture_position, but where ranks are to disagree */
    int rank, world;
    double patience_s;
    struct checkpoint_writer *writer;
    struct checkpoint_status status;
    struct err *error; /* of creating or beginning */
};

static inline struct err *fixture_create(struct fixture_rank *r)
{
    cJSON *spec = cJSON_CreateObject();
    if (!cJSON_AddStringToObject(spec, "name", "a \"toy\"")) {
        cJSON_Delete(spec);
        return err_no_memory();
    }
    struct checkpoint_options options = {
        .kernels = &fixture_kernels,
        .directory = r->directory,
        .facts = {.job = FIXTURE_JOB,
                  .attempt = r->attempt,
                  .seed = FIXTURE_SEED,
                  .world = r->world,
                  .mode = "csbp",
                  .degree = r->world,
                  .data = 1,
                  .spec = spec},
        .rank = r->rank,
        .parameters = &fixture_parameters,
        .begin = fixture_count(r->world) * r->rank,
        .count = fixture_count(r->world),
        .patience_s = r->patience_s ? r->patience_s : FIXTURE_WAIT_S,
    };
    struct err *e = checkpoint_writer_create(&options, &r->writer);
    cJSON_Delete(spec);
    return e;
}

/* Fills the snapshot and begins. */
static inline struct err *fixture_begin(struct fixture_rank *r)
{
    const struct checkpoint_snapshot *s = checkpoint_snapshot(r->writer);
    if (!s)
        return err_new(ERR_CONFLICT, "busy");
    int64_t count = fixture_count(r->world), begin = count * r->rank;
    for (int64_t i = 0; i < count; i++) {
        s->weights[i] = fixture_value(begin + i, r->step, 0);
        s->m[i] = fixture_value(begin + i, r->step, 1);
        s->v[i] = fixture_value(begin + i, r->step, 2);
    }
    return checkpoint_begin(r->writer, r->step, r->step,
                            r->data_position ? r->data_position : fixture_position(r->step));
}

static inline void *fixture_run_rank(void *argument)
{
    struct fixture_rank *r = argument;
    r->error = fixture_create(r);
    if (!r->error)
        r->error = fixture_begin(r);
    if (!r->error)
        checkpoint_wait(r->writer, FIXTURE_WAIT_S, &r->status);
    checkpoint_writer_destroy(r->writer);
    r->writer = NULL;
    return NULL;
}

static inline void fixture_forget(struct fixture_rank *ranks, int n)
{
    for (int i = 0; i < n; i++) {
        free(ranks[i].status.manifest);
        err_free(ranks[i].status.error);
        err_free(ranks[i].error);
        ranks[i].status = (struct checkpoint_status){0};
        ranks[i].error = NULL;
    }
}

static inline void fixture_ranks(struct fixture_rank *ranks, const char *directory, int64_t attempt,
                                 int world, int64_t step)
{
    for (int r = 0; r < world; r++)
        ranks[r] = (struct fixture_rank){
            .directory = directory, .attempt = attempt, .step = step, .rank = r, .world = world};
}

/* All of the ranks at once, each in a thread; the outcome is in them. */
static inline void fixture_run(struct fixture_rank *ranks, int n)
{
    pthread_t threads[FIXTURE_RANKS];
    for (int i = 0; i < n; i++)
        if (pthread_create(&threads[i], NULL, fixture_run_rank, &ranks[i]))
            abort();
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

/* A checkpoint that is expected to succeed. */
static inline void fixture_write(const char *directory, int64_t attempt, int world, int64_t step)
{
    struct fixture_rank ranks[FIXTURE_RANKS];
    fixture_ranks(ranks, directory, attempt, world, step);
    fixture_run(ranks, world);
    for (int r = 0; r < world; r++) {
        if (ranks[r].error || ranks[r].status.error)
            fail_msg("rank %d: %s", r,
                     err_message(ranks[r].error ? ranks[r].error : ranks[r].status.error));
        assert_int_equal(ranks[r].status.phase, CHECKPOINT_DONE);
        assert_int_equal(ranks[r].status.step, step);
        assert_non_null(strstr(ranks[r].status.manifest, "/" CHECKPOINT_MANIFEST));
    }
    fixture_forget(ranks, world);
}

/* The state of a range, as `count` elements from `begin` of a new world. */
static inline struct err *fixture_check_range(const struct checkpoint *c, int64_t begin,
                                              int64_t count)
{
    struct err *e = NULL;
    float *got[3];
    for (int kind = 0; kind < 3; kind++)
        got[kind] = malloc((size_t)count * sizeof(float));
    if (got[0] && got[1] && got[2])
        e = checkpoint_read(c, &fixture_parameters, begin, count, got[0], got[1], got[2]);
    else
        e = err_no_memory();
    for (int kind = 0; kind < 3 && !e; kind++)
        for (int64_t i = 0; i < count && !e; i++) {
            float expected = fixture_value(begin + i, checkpoint_manifest(c)->facts.step, kind);
            if (memcmp(&got[kind][i], &expected, sizeof expected) != 0)
                e = err_new(ERR_INTERNAL, "%s: element %lld of kind %d is %g instead of %g",
                            checkpoint_path(c), (long long)(begin + i), kind, (double)got[kind][i],
                            (double)expected);
        }
    for (int kind = 0; kind < 3; kind++)
        free(got[kind]);
    return e;
}

/* The checkpoint at `path` is whole, its hashes are right, and it holds the state of its step for
 * every rank of every world of up to 4. */
static inline struct err *fixture_check(const char *path)
{
    struct checkpoint *c;
    TRY(checkpoint_open(path, true, &c));
    const struct checkpoint_facts *f = &checkpoint_manifest(c)->facts;
    struct err *e = NULL;
    if (f->job != FIXTURE_JOB || f->seed != FIXTURE_SEED || f->optimizer_step != f->step ||
        f->data_position != fixture_position(f->step))
        e = err_new(ERR_INTERNAL, "%s: other facts than were written", path);
    for (int world = 1; world <= 4; world++)
        for (int r = 0; r < world && !e; r++)
            e = fixture_check_range(c, fixture_count(world) * r, fixture_count(world));
    checkpoint_close(c);
    return e;
}

/* Whatever is called a checkpoint in the directory is one. */
static inline struct err *fixture_check_all(const char *directory, size_t *count)
{
    int64_t *steps;
    TRY(checkpoint_list(directory, &steps, count));
    struct err *e = NULL;
    for (size_t i = 0; i < *count && !e; i++) {
        char name[CHECKPOINT_NAME_BYTES], path[512];
        checkpoint_name(steps[i], name);
        snprintf(path, sizeof path, "%s/%s", directory, name);
        e = fixture_check(path);
    }
    free(steps);
    return e;
}

/* A fresh directory, in memory where there is some. Removed by fixture_remove. */
static inline void fixture_directory(char path[static 64])
{
    strcpy(path, "/dev/shm/dllmd-checkpoint-XXXXXX");
    if (mkdtemp(path))
        return;
    strcpy(path, "/tmp/dllmd-checkpoint-XXXXXX");
    assert_non_null(mkdtemp(path));
}

static inline void fixture_remove(const char *path)
{
    OK(checkpoint_remove_tree(path));
}

#endif
