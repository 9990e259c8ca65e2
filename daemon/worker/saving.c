#include "daemon/worker/saving.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/clock.h"
#include "daemon/base/log.h"
#include "daemon/worker/checkpoint/reader.h"
#include "daemon/worker/checkpoint/writer.h"
#include "store/checkpoint_directory.h"

/* How long a rank whose shard is written waits for the others'. */
#define PATIENCE_S 600.0
/* After a failure (a full disk, say) nobody tries again for so long. */
#define RETRY_S 10.0
/* A rank that waits for its checkpoint says so. */
#define PROGRESS_EVERY_S 5.0

struct saving {
    struct saving_options options;
    struct checkpoint_writer *writer;
    bool wanted, under_way;
    double not_before_s; /* of the monotonic clock */
};

struct err *saving_create(const struct saving_options *options, struct saving **out)
{
    const struct job_spec *spec = options->spec;
    const struct link_identity *identity = link_identity(options->link);
    struct saving *s = calloc(1, sizeof *s);
    if (!s)
        return err_no_memory();
    s->options = *options;
    struct checkpoint_options writer = {
        .kernels = options->kernels,
        .directory = options->directory,
        .facts =
            {
                .job = identity->job,
                .attempt = identity->attempt,
                .seed = spec->seed,
                .world = spec_world_size(spec),
                .mode = parallel_mode_name(spec->parallel.mode),
                .degree = spec->parallel.degree,
                .data = spec->parallel.data,
                .spec = options->spec_json,
            },
        .rank = identity->rank,
        .parameters = engine_parameters(options->engine),
        .patience_s = PATIENCE_S,
    };
    engine_range(options->engine, &writer.begin, &writer.count);
    struct err *e = checkpoint_writer_create(&writer, &s->writer);
    if (!e && identity->rank == 0)
        e = checkpoint_clean(options->directory, identity->attempt); /* nobody has begun yet */
    if (e)
        saving_destroy(s);
    else
        *out = s;
    return e;
}

void saving_destroy(struct saving *s)
{
    if (!s)
        return;
    checkpoint_writer_destroy(s->writer);
    free(s);
}

size_t saving_memory_bytes(const struct saving *s)
{
    return checkpoint_writer_memory_bytes(s->writer);
}

static struct err *load(struct saving *s, const struct checkpoint *c, int64_t *step,
                        int64_t *updates)
{
    const struct checkpoint_manifest *manifest = checkpoint_manifest(c);
    const struct checkpoint_snapshot *room = checkpoint_snapshot(s->writer);
    struct engine *engine = s->options.engine;
    int64_t begin, count;
    if (manifest->facts.seed != s->options.spec->seed)
        return err_new(ERR_INVALID, "%s is of seed %llu, the job's is %llu", checkpoint_path(c),
                       (unsigned long long)manifest->facts.seed,
                       (unsigned long long)s->options.spec->seed);
    engine_range(engine, &begin, &count);
    TRY(checkpoint_read(c, engine_parameters(engine), begin, count, room->weights, room->m,
                        room->v));
    *step = manifest->facts.step;
    *updates = manifest->facts.optimizer_step;
    return engine_load_state(engine, room->weights, room->m, room->v);
}

struct err *saving_resume(struct saving *s, const char *path, int64_t *step, int64_t *updates)
{
    struct checkpoint *c;
    TRY(checkpoint_open(path, false, &c));
    struct err *e = load(s, c, step, updates);
    checkpoint_close(c);
    return e;
}

/* ---- The checkpoint under way ---- */

static struct err *tell_done(struct saving *s, const struct checkpoint_status *status)
{
    if (link_identity(s->options.link)->rank)
        return NULL;
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "step", (double)status->step);
    cJSON_AddStringToObject(fields, "manifest", status->manifest);
    cJSON_AddNumberToObject(fields, "elapsed_s", status->elapsed_s);
    return link_record(s->options.link, "checkpoint", fields);
}

static struct err *tell_failed(struct saving *s, int64_t step, const struct err *reason)
{
    char *message;
    if (asprintf(&message, "The checkpoint of step %lld could not be written: %s", (long long)step,
                 err_message(reason)) < 0)
        return err_no_memory();
    log_warning("%s", message);
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "event", "checkpoint_failed");
    cJSON_AddStringToObject(fields, "message", message);
    free(message);
    return link_record(s->options.link, "event", fields);
}

static struct err *tell_writing(struct saving *s, const struct checkpoint_status *status)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddNumberToObject(fields, "done", status->elapsed_s);
    cJSON_AddStringToObject(fields, "unit", "seconds of writing a checkpoint");
    return link_record(s->options.link, "progress", fields);
}

/* *failure (may be NULL) gets what the writer failed of. */
static struct err *settle(struct saving *s, struct checkpoint_status *status, struct err **failure)
{
    struct err *e = NULL;
    if (status->phase == CHECKPOINT_DONE) {
        s->under_way = false;
        e = tell_done(s, status);
        free(status->manifest);
    } else if (status->phase == CHECKPOINT_FAILED) {
        s->under_way = false;
        s->not_before_s = clock_s() + RETRY_S;
        e = tell_failed(s, status->step, status->error);
        if (failure)
            *failure = status->error;
        else
            err_free(status->error);
    }
    return e;
}

struct err *saving_poll(struct saving *s)
{
    struct checkpoint_status status;
    if (!s->under_way)
        return NULL;
    checkpoint_poll(s->writer, &status);
    return settle(s, &status, NULL);
}

bool saving_is_busy(const struct saving *s)
{
    return s->under_way || clock_s() < s->not_before_s;
}

void saving_want(struct saving *s)
{
    s->wanted = true;
}

struct err *saving_begin(struct saving *s, int64_t step, int64_t updates, bool *begun)
{
    *begun = s->wanted && !s->under_way;
    if (!*begun)
        return NULL;
    const struct checkpoint_snapshot *to = checkpoint_snapshot(s->writer);
    TRY(engine_save_state(s->options.engine, to->weights, to->m, to->v));
    TRY(checkpoint_begin(s->writer, step, updates, step * s->options.spec->batch.sequences));
    s->wanted = false;
    s->under_way = true;
    return NULL;
}

struct err *saving_finish(struct saving *s)
{
    struct err *failure = NULL;
    while (s->under_way) {
        struct checkpoint_status status;
        checkpoint_wait(s->writer, PROGRESS_EVERY_S, &status);
        struct err *e = status.phase == CHECKPOINT_WRITING ? tell_writing(s, &status)
                                                           : settle(s, &status, &failure);
        if (e) {
            err_free(failure);
            return e;
        }
    }
    return failure;
}
