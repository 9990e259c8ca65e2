#include "daemon/worker/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/clock.h"
#include "daemon/base/file.h"
#include "daemon/plan/spec.h"
#include "daemon/worker/backend.h"
#include "daemon/worker/comm/comm.h"
#include "daemon/worker/data/dataset.h"
#include "daemon/worker/data/order.h"
#include "daemon/worker/engine.h"
#include "daemon/worker/evaluate.h"
#include "daemon/worker/optim/schedule.h"
#include "daemon/worker/sample.h"
#include "daemon/worker/saving.h"

/* How long ranks wait for each other in a collective before they take the rest for dead. */
#define COLLECTIVE_TIMEOUT_S 300.0

struct run {
    struct link *link;
    struct job_spec spec;
    int rank, world;
    int replica; /* of spec.parallel.data */
    const struct kernels *kernels;
    enum dtype dtype;
    struct comm *world_comm, *group_comm; /* the same one where there is one replica */
    struct dataset *dataset;
    struct engine *engine;
    struct batch *batch;
    struct saving *saving;
    int64_t done;    /* steps that the checkpoint it began from has */
    int64_t updates; /* of the weights so far: a step without a loss makes none */
};

/* ---- Set-up ---- */

static struct err *read_spec(struct run *run)
{
    const cJSON *welcome = link_welcome(run->link);
    const cJSON *json = cJSON_GetObjectItemCaseSensitive(welcome, "spec");
    struct problems problems = {0};
    spec_parse(json, &run->spec, &problems);
    struct err *e = NULL;
    if (problems.no_memory)
        e = err_no_memory();
    else if (problems_count(&problems))
        e = err_new(ERR_INTERNAL, "the daemon sent a spec that is not valid: %s: %s",
                    problems.items[0].path, problems.items[0].message);
    problems_free(&problems);
    if (!e) {
        run->rank = link_identity(run->link)->rank;
        run->world = spec_world_size(&run->spec);
        run->replica = run->rank / run->spec.parallel.degree;
    }
    return e;
}

static struct err *connect(const struct kernels *kernels, struct meeting *meeting, const char *name,
                           int rank, int world, struct comm **out)
{
    if (world == 1)
        return comm_create_self(out);
    if (kernels->device != DEVICE_CPU)
        return err_new(
            ERR_INVALID,
            "%d ranks on GPUs cannot meet: this worker has collectives between CPUs alone", world);
    return comm_create_gloo(meeting, name, rank, world, "127.0.0.1", COLLECTIVE_TIMEOUT_S, out);
}

/* All ranks meet, then, where there are replicas, those that share their sequences. */
static struct err *meet(struct run *run)
{
    struct meeting meeting = link_meeting(run->link);
    int degree = run->spec.parallel.degree;
    TRY(connect(run->kernels, &meeting, "world", run->rank, run->world, &run->world_comm));
    if (degree == run->world) {
        run->group_comm = run->world_comm;
        return NULL;
    }
    int members[SPEC_MAX_DEGREE];
    for (int i = 0; i < degree; i++)
        members[i] = run->replica * degree + i;
    struct meeting_group group = {&meeting, run->world, members, degree};
    struct meeting within = meeting_of_group(&group);
    return connect(run->kernels, &within, "group", run->rank % degree, degree, &run->group_comm);
}

/* The directories that models may be read from, as the daemon tells them. */
static struct err *load_within_roots(struct run *run)
{
    const cJSON *told = cJSON_GetObjectItemCaseSensitive(link_welcome(run->link), "roots");
    size_t n = (size_t)cJSON_GetArraySize(told);
    const char **paths = calloc(n + 1, sizeof *paths);
    if (!paths)
        return err_no_memory();
    struct file_roots roots = {.paths = paths};
    for (const cJSON *item = told ? told->child : NULL; item; item = item->next)
        if (cJSON_IsString(item))
            paths[roots.count++] = item->valuestring;
    struct err *e = engine_load(run->engine, run->spec.model.path, &roots);
    free(paths);
    return e;
}

static struct err *load_weights(struct run *run)
{
    if (run->spec.model.random_init)
        return engine_init(run->engine, run->spec.seed);
    TRY(file_expect_unmoved(run->spec.model.path));
    return load_within_roots(run);
}

static struct err *make_engine(struct run *run)
{
    const struct job_spec *spec = &run->spec;
    int64_t length = spec->data.sequence_length * spec->batch.micro_sequences;
    struct engine_options options = {
        .kernels = run->kernels,
        .world = run->world_comm,
        .group = run->group_comm,
        .model = &spec->model.config,
        .objective = spec->objective,
        .mode = spec->parallel.mode,
        .recompute = spec->recompute,
        .dtype = run->dtype,
        .lengths = {length, spec->data.sequence_length},
    };
    TRY(engine_create(&options, &run->engine));
    return batch_create(length, spec->objective.block_size, spec->objective.views, &run->batch);
}

static const char *told(const struct run *run, const char *key)
{
    return cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(link_welcome(run->link), key));
}

/* Weights: of the checkpoint that the daemon names, or the job's first ones. */
static struct err *begin(struct run *run)
{
    const char *checkpoint = told(run, "resume");
    struct saving_options options = {
        .link = run->link,
        .spec = &run->spec,
        .spec_json = cJSON_GetObjectItemCaseSensitive(link_welcome(run->link), "spec"),
        .kernels = run->kernels,
        .engine = run->engine,
        .directory = told(run, "checkpoints"),
    };
    if (!options.directory)
        return err_new(ERR_INTERNAL, "the daemon's welcome names no directory for checkpoints");
    TRY(saving_create(&options, &run->saving));
    return checkpoint ? saving_resume(run->saving, checkpoint, &run->done, &run->updates)
                      : load_weights(run);
}

static struct err *check_dataset(const struct run *run)
{
    const struct job_spec *spec = &run->spec;
    if (dataset_vocab(run->dataset) > spec->model.config.vocab)
        return err_new(
            ERR_INVALID,
            "tokenizer %s has ids up to %" PRId64 ", but the model's vocab_size is %" PRId64,
            spec->data.tokenizer, dataset_vocab(run->dataset) - 1, spec->model.config.vocab);
    if (!dataset_sequences(run->dataset, DATASET_TRAINING))
        return err_new(ERR_INVALID, "%s leaves nothing to train on beside what is held out",
                       spec->data.path);
    return NULL;
}

static struct err *set_up(struct run *run)
{
    TRY(read_spec(run));
    const struct job_spec *spec = &run->spec;
    if (!told(run, "artifact"))
        return err_new(ERR_INTERNAL, "the daemon's welcome names no artifact");
    TRY(backend_open(spec, &run->kernels, &run->dtype));
    TRY(dataset_open(told(run, "artifact"), spec->data.sequence_length, spec->objective.block_size,
                     spec->data.validation_fraction, &run->dataset));
    TRY(check_dataset(run));
    TRY(meet(run));
    TRY(make_engine(run));
    TRY(begin(run));
    cJSON *started = cJSON_CreateObject();
    cJSON_AddStringToObject(started, "device", run->kernels->name);
    cJSON_AddNumberToObject(started, "threads", run->kernels->threads());
    cJSON_AddNumberToObject(
        started, "memory_bytes",
        (double)(engine_memory_bytes(run->engine) + saving_memory_bytes(run->saving)));
    return link_record(run->link, "started", started);
}

static void tear_down(struct run *run)
{
    saving_destroy(run->saving);
    batch_destroy(run->batch);
    engine_destroy(run->engine);
    dataset_close(run->dataset);
    if (run->group_comm && run->group_comm != run->world_comm)
        comm_destroy(run->group_comm);
    if (run->world_comm)
        comm_destroy(run->world_comm);
    spec_free(&run->spec);
}

/* ---- The step ---- */

/* What ranks agree on in the sums that engine_finish_sums carries along: how many of them have the
 * order, or are busy. */
enum agreed {
    AGREED_STOP,
    AGREED_PAUSE,
    AGREED_LEASE_OVER,
    AGREED_SAVE,
    AGREED_BUSY,
    AGREED_COUNT
};

static void read_orders(const struct run *run, double *orders)
{
    unsigned given = link_orders(run->link);
    orders[AGREED_STOP] = (given & LINK_STOP) != 0;
    orders[AGREED_PAUSE] = (given & LINK_PAUSE) != 0;
    orders[AGREED_LEASE_OVER] = (given & LINK_LEASE_OVER) != 0;
    orders[AGREED_SAVE] = (given & LINK_CHECKPOINT_NOW) != 0;
    orders[AGREED_BUSY] = saving_is_busy(run->saving);
}

static void record_event(struct run *run, const char *event, const char *message)
{
    if (run->rank)
        return;
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "event", event);
    cJSON_AddStringToObject(fields, "message", message);
    err_free(link_record(run->link, "event", fields));
}

/* Fills the batch with this replica's `index`-th micro-batch of a step. */
static struct err *next_batch(struct run *run, int64_t step, int64_t index)
{
    const struct job_spec *spec = &run->spec;
    int64_t length = spec->data.sequence_length, micro = spec->batch.micro_sequences;
    int64_t per_replica = spec->batch.sequences / spec->parallel.data;
    uint64_t first =
        (uint64_t)((step - 1) * spec->batch.sequences + run->replica * per_replica + index * micro);
    uint64_t n = (uint64_t)dataset_sequences(run->dataset, DATASET_TRAINING);
    batch_clear(run->batch);
    for (int64_t i = 0; i < micro; i++) {
        uint64_t sample = first + (uint64_t)i; /* counted over epochs: the data position */
        int64_t sequence = (int64_t)order_sequence(spec->seed, n, sample);
        TRY(sample_fill(run->dataset, DATASET_TRAINING, sequence, run->batch, i * length));
        batch_corrupt(run->batch, &spec->objective, spec->seed, CORRUPTION_TRAINING, sample,
                      i * length, length);
    }
    return NULL;
}

static struct err *update(struct run *run, int64_t step, const struct engine_sums *sums,
                          cJSON *metrics)
{
    const struct job_spec *spec = &run->spec;
    struct adamw options = {
        .lr = schedule_lr(spec, step),
        .beta1 = spec->optimizer.beta1,
        .beta2 = spec->optimizer.beta2,
        .eps = spec->optimizer.eps,
        .weight_decay = spec->optimizer.weight_decay,
        .step = run->updates + 1,
    };
    double grad_norm;
    TRY(engine_update(run->engine, sums->denominator, &options, spec->optimizer.max_grad_norm,
                      &grad_norm));
    run->updates++;
    cJSON_AddNumberToObject(metrics, "loss", sums->loss / sums->denominator);
    cJSON_AddNumberToObject(metrics, "lr", options.lr);
    cJSON_AddNumberToObject(metrics, "grad_norm", grad_norm);
    return NULL;
}

static void add_times(cJSON *metrics, const struct engine_times *before,
                      const struct engine_times *after)
{
    cJSON_AddNumberToObject(metrics, "forward_s", after->forward_s - before->forward_s);
    cJSON_AddNumberToObject(metrics, "backward_s", after->backward_s - before->backward_s);
    cJSON_AddNumberToObject(metrics, "exchange_s", after->exchange_s - before->exchange_s);
    cJSON_AddNumberToObject(metrics, "optimizer_s", after->optimizer_s - before->optimizer_s);
}

static int64_t received_bytes(const struct run *run)
{
    int64_t bytes = comm_counters(run->world_comm).received_bytes;
    if (run->group_comm != run->world_comm)
        bytes += comm_counters(run->group_comm).received_bytes;
    return bytes;
}

static struct err *step_once(struct run *run, int64_t step, cJSON *metrics, double *orders)
{
    const struct job_spec *spec = &run->spec;
    double began = clock_s();
    struct engine_times before = engine_times(run->engine);
    int64_t wire_before = received_bytes(run);
    int64_t micro_batches =
        spec->batch.sequences / spec->parallel.data / spec->batch.micro_sequences;
    struct engine_sums sums = {0};

    engine_zero_gradients(run->engine);
    for (int64_t i = 0; i < micro_batches; i++) {
        TRY(next_batch(run, step, i));
        TRY(engine_accumulate(run->engine, run->batch, &spec->objective, true, &sums));
    }
    read_orders(run, orders);
    TRY(engine_finish_sums(run->engine, &sums, orders, AGREED_COUNT));
    if (!isfinite(sums.loss))
        return err_new(ERR_INVALID,
                       "step %" PRId64 ": the loss is %f: the weights are not finite%s", step,
                       sums.loss, step == run->done + 1 ? ", already as they were loaded" : "");
    if (sums.denominator > 0) {
        struct err *e = update(run, step, &sums, metrics);
        if (e)
            return err_wrap(e, "step %" PRId64, step);
    } else {
        record_event(run, "empty_step", "No token of this step carried loss: nothing was updated.");
    }
    double elapsed_s = clock_s() - began;
    struct engine_times after = engine_times(run->engine);
    double tokens = (double)(spec->batch.sequences * spec->data.sequence_length);
    cJSON_AddNumberToObject(metrics, "loss_tokens", sums.denominator);
    cJSON_AddNumberToObject(metrics, "tokens", tokens);
    cJSON_AddNumberToObject(metrics, "tokens_per_s", tokens / elapsed_s);
    cJSON_AddNumberToObject(metrics, "step_s", elapsed_s);
    add_times(metrics, &before, &after);
    cJSON_AddNumberToObject(metrics, "wire_bytes", (double)(received_bytes(run) - wire_before));
    return NULL;
}

/* Takes ownership of metrics. */
static struct err *record_metrics(struct run *run, const char *kind, int64_t step, cJSON *metrics)
{
    cJSON *fields = cJSON_CreateObject();
    if (!fields || !metrics) {
        cJSON_Delete(fields);
        cJSON_Delete(metrics);
        return err_no_memory();
    }
    cJSON_AddNumberToObject(fields, "step", (double)step);
    if (!cJSON_AddItemToObject(fields, "metrics", metrics)) {
        cJSON_Delete(fields);
        cJSON_Delete(metrics);
        return err_no_memory();
    }
    if (run->rank) {
        cJSON_Delete(fields);
        return NULL;
    }
    return link_record(run->link, kind, fields);
}

static struct err *evaluate_now(struct run *run, int64_t step)
{
    struct evaluation result;
    TRY(evaluate_run(run->engine, run->dataset, &run->spec, run->replica, &result));
    if (!result.sequences)
        return NULL;
    cJSON *metrics = cJSON_CreateObject();
    cJSON_AddNumberToObject(metrics, "bound", result.bound);
    cJSON_AddNumberToObject(metrics, "unigram_entropy", result.unigram_entropy);
    cJSON_AddNumberToObject(metrics, "tokens", result.tokens);
    cJSON_AddNumberToObject(metrics, "evaluation_s", result.elapsed_s);
    return record_metrics(run, "evaluation", step, metrics);
}

/* Behind a step that all ranks have done: what is due and what was ordered. *end: the run ends
 * here. A pause whose checkpoint fails is tried again while training goes on; a run whose lease is
 * over ends all the same. */
static struct err *save_if_due(struct run *run, int64_t step, const double *orders, bool *end)
{
    const struct job_spec *spec = &run->spec;
    bool lease_over = orders[AGREED_LEASE_OVER] > 0, pause = orders[AGREED_PAUSE] > 0;
    bool last = step == spec->steps || lease_over, begun = false;
    if (last || pause || orders[AGREED_SAVE] > 0 ||
        (spec->checkpoint.every && step % spec->checkpoint.every == 0))
        saving_want(run->saving);
    if (orders[AGREED_SAVE] > 0)
        link_clear(run->link, LINK_CHECKPOINT_NOW);
    TRY(saving_poll(run->saving));
    if (last)
        err_free(saving_finish(run->saving)); /* of an earlier step, told already if it failed */
    if (last || orders[AGREED_BUSY] == 0)
        TRY(saving_begin(run->saving, step, run->updates, &begun));
    if (step == spec->steps || !begun || !(lease_over || pause))
        return NULL;
    struct err *failure = saving_finish(run->saving);
    if (lease_over) {
        *end = true;
        return failure;
    }
    /* One rank may have failed where others did not: they agree on it. */
    double failed = failure != NULL;
    err_free(failure); /* told already */
    TRY(comm_sum(run->world_comm, &failed, 1));
    *end = failed == 0;
    return NULL;
}

static struct err *run_steps(struct run *run, bool *stopped)
{
    const struct job_spec *spec = &run->spec;
    if (run->done == spec->steps) /* it was saved, and died before its last evaluation was told */
        TRY(evaluate_now(run, spec->steps));
    for (int64_t step = run->done + 1; step <= spec->steps && !*stopped; step++) {
        cJSON *metrics = cJSON_CreateObject();
        double orders[AGREED_COUNT] = {0};
        struct err *e = metrics ? step_once(run, step, metrics, orders) : err_no_memory();
        if (e) {
            cJSON_Delete(metrics);
            return e;
        }
        TRY(record_metrics(run, "step", step, metrics));
        if (orders[AGREED_STOP] > 0 && step < spec->steps) {
            *stopped = true;
            return NULL;
        }
        TRY(save_if_due(run, step, orders, stopped));
        bool due = spec->evaluate.every && step % spec->evaluate.every == 0;
        if (!*stopped && (due || step == spec->steps))
            TRY(evaluate_now(run, step));
    }
    return *stopped ? NULL : saving_finish(run->saving);
}

struct err *train_run(struct link *link, bool *stopped)
{
    struct run run = {.link = link};
    struct err *e = set_up(&run);
    if (!e)
        e = run_steps(&run, stopped);
    if (!e && !*stopped)
        e = link_record(link, "done", cJSON_CreateObject());
    tear_down(&run);
    return e;
}
