#include "api/dryrun.h"

#include "api/doc.h"
#include "daemon/plan/plan.h"

#define RANKS_SHOWN 1024

static size_t dtype_bytes(const struct job_spec *spec)
{
    return spec->device == SPEC_DEVICE_CUDA ? 2 : 4;
}

static int64_t micro_batches(const struct job_spec *spec)
{
    return spec->batch.sequences / spec->parallel.data / spec->batch.micro_sequences;
}

static void add_memory(cJSON *json, const struct plan_estimate *e)
{
    cJSON *memory = doc_item(json, "memory_bytes", cJSON_CreateObject());
    doc_integer(memory, "weights", (int64_t)e->weights_bytes);
    doc_integer(memory, "gradients", (int64_t)e->gradients_bytes);
    doc_integer(memory, "optimizer", (int64_t)e->optimizer_bytes);
    doc_integer(memory, "activations", (int64_t)e->activations_bytes);
    doc_integer(memory, "exchange", (int64_t)e->exchange_bytes);
    doc_integer(memory, "loss", (int64_t)e->loss_bytes);
    doc_integer(memory, "checkpoint", (int64_t)e->checkpoint_bytes);
    doc_integer(memory, "total", (int64_t)e->total_bytes);
}

static void add_traffic(cJSON *json, const struct job_spec *spec, const struct plan_estimate *e)
{
    cJSON *traffic = doc_item(json, "received_bytes_per_step", cJSON_CreateObject());
    int64_t attention = e->attention_wire_bytes * micro_batches(spec);
    doc_integer(traffic, "attention", attention);
    doc_integer(traffic, "gradients_and_weights", e->step_wire_bytes);
    doc_integer(traffic, "total", attention + e->step_wire_bytes);
}

static struct err *add_rank(cJSON *ranks, const struct job_spec *spec, int rank,
                            struct plan_estimate *e)
{
    int64_t windows[MODEL_MAX_LAYERS];
    int kinds[MODEL_MAX_LAYERS];
    int n_kinds = plan_windows(&spec->model.config, windows, kinds);
    struct plan_shape shape = plan_shape_of(spec);
    struct plan_capacity capacity;
    int degree = spec->parallel.degree, of_group = rank % degree;
    TRY(plan_capacity(&shape, of_group, windows, n_kinds, &capacity));
    TRY(plan_estimate(spec, spec->parallel.mode, degree, of_group, dtype_bytes(spec), e));
    if (cJSON_GetArraySize(ranks) >= RANKS_SHOWN)
        return NULL;
    cJSON *json = doc_push(ranks, cJSON_CreateObject());
    doc_integer(json, "rank", rank);
    doc_integer(json, "replica", rank / degree);
    doc_integer(json, "group_rank", of_group);
    doc_integer(json, "rows", capacity.rows);
    doc_integer(json, "loss_rows", capacity.loss_rows);
    doc_integer(json, "visible_pairs", e->visible_pairs);
    add_memory(json, e);
    add_traffic(json, spec, e);
    return NULL;
}

/* The neediest rank of each mode, at this job's degree. */
static struct err *add_mode(cJSON *modes, const struct job_spec *spec, enum parallel_mode mode)
{
    struct plan_estimate most = {0};
    int degree = mode == MODE_NONE ? 1 : spec->parallel.degree;
    for (int rank = 0; rank < degree; rank++) {
        struct plan_estimate e;
        TRY(plan_estimate(spec, mode, degree, rank, dtype_bytes(spec), &e));
        if (rank == 0 || e.total_bytes > most.total_bytes)
            most = e;
    }
    cJSON *json = doc_item(modes, parallel_mode_name(mode), cJSON_CreateObject());
    doc_integer(json, "degree", degree);
    doc_integer(json, "visible_pairs", most.visible_pairs);
    add_memory(json, &most);
    add_traffic(json, spec, &most);
    return NULL;
}

struct err *dryrun_plan(const struct job_spec *spec, const struct api_control *control, cJSON **out)
{
    int world = spec_world_size(spec);
    cJSON *json = cJSON_CreateObject();
    doc_text(json, "device", spec->device == SPEC_DEVICE_CUDA ? "cuda" : "cpu");
    doc_text(json, "mode", parallel_mode_name(spec->parallel.mode));
    doc_integer(json, "world", world);
    doc_integer(json, "micro_batches", micro_batches(spec));
    doc_integer(json, "parameters", model_parameters(&spec->model.config));
    cJSON *ranks = doc_item(json, "ranks", cJSON_CreateArray());
    size_t total = 0;
    struct err *err = NULL;
    for (int rank = 0; !err && rank < world; rank++) {
        struct plan_estimate e = {0};
        err = add_rank(ranks, spec, rank, &e);
        total += e.total_bytes;
    }
    cJSON *modes = doc_item(json, "modes", cJSON_CreateObject());
    for (int mode = MODE_NONE; !err && mode <= MODE_CSBP; mode++)
        if (mode == MODE_NONE || spec->parallel.degree > 1)
            err = add_mode(modes, spec, (enum parallel_mode)mode);
    if (err) {
        cJSON_Delete(json);
        return err;
    }
    size_t available = control->slot_bytes * (size_t)control->cpu_slots;
    doc_integer(json, "memory_bytes", (int64_t)total);
    doc_integer(json, "memory_available_bytes", (int64_t)available);
    cJSON_AddBoolToObject(json, "fits", total <= available);
    *out = json;
    return NULL;
}
