#include "api/dryrun.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "api/doc.h"
#include "api/place.h"
#include "daemon/plan/plan.h"

#define RANKS_SHOWN 1024

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

static void add_rank(cJSON *ranks, const struct job_spec *spec, int rank,
                     const struct plan_estimate *e)
{
    int degree = spec->parallel.degree;
    cJSON *json = doc_push(ranks, cJSON_CreateObject());
    doc_integer(json, "rank", rank);
    doc_integer(json, "replica", rank / degree);
    doc_integer(json, "group_rank", rank % degree);
    doc_integer(json, "rows", e->rows);
    doc_integer(json, "loss_rows", e->loss_rows);
    doc_integer(json, "visible_pairs", e->visible_pairs);
    add_memory(json, e);
    add_traffic(json, spec, e);
}

/* The neediest rank of each mode, at this job's degree. */
static struct err *add_mode(cJSON *modes, const struct job_spec *spec, enum parallel_mode mode,
                            struct plan_estimate *estimates)
{
    int degree = mode == MODE_NONE ? 1 : spec->parallel.degree;
    TRY(plan_estimates(spec, mode, degree, spec_dtype_bytes(spec), estimates));
    const struct plan_estimate *most = &estimates[0];
    for (int rank = 1; rank < degree; rank++)
        if (estimates[rank].total_bytes > most->total_bytes)
            most = &estimates[rank];
    cJSON *json = doc_item(modes, parallel_mode_name(mode), cJSON_CreateObject());
    doc_integer(json, "degree", degree);
    doc_integer(json, "visible_pairs", most->visible_pairs);
    add_memory(json, most);
    add_traffic(json, spec, most);
    return NULL;
}

static struct err *fill_plan(const struct job_spec *spec, struct plan_estimate *estimates,
                             cJSON *json)
{
    int world = spec_world_size(spec), degree = spec->parallel.degree;
    TRY(plan_estimates(spec, spec->parallel.mode, degree, spec_dtype_bytes(spec), estimates));
    cJSON *ranks = doc_item(json, "ranks", cJSON_CreateArray());
    for (int rank = 0; rank < world && rank < RANKS_SHOWN; rank++)
        add_rank(ranks, spec, rank, &estimates[rank % degree]);
    cJSON *modes = doc_item(json, "modes", cJSON_CreateObject());
    for (int mode = MODE_NONE; mode <= MODE_CSBP; mode++)
        if (mode == MODE_NONE || degree > 1)
            TRY(add_mode(modes, spec, (enum parallel_mode)mode, estimates));
    return NULL;
}

/* What is possible but may not be meant. */
static void add_warnings(cJSON *json, const struct job_spec *spec)
{
    char text[256];
    const struct model_config *m = &spec->model.config;
    cJSON *warnings = doc_item(json, "warnings", cJSON_CreateArray());
    if (m->max_positions != 0 && spec->data.sequence_length > m->max_positions) {
        snprintf(text, sizeof text,
                 "data.sequence_length is %" PRId64
                 ", but config.json's max_position_embeddings is %" PRId64
                 ": a document that is longer has positions that the model has never seen",
                 spec->data.sequence_length, m->max_positions);
        doc_push(warnings, cJSON_CreateString(text));
    }
}

struct err *dryrun_plan(const struct job_spec *spec, const struct api_control *control, cJSON **out)
{
    size_t total;
    struct plan_estimate *estimates = calloc((size_t)spec->parallel.degree, sizeof *estimates);
    if (!estimates)
        return err_no_memory();
    cJSON *json = cJSON_CreateObject();
    doc_text(json, "device", spec->device == SPEC_DEVICE_CUDA ? "cuda" : "cpu");
    doc_text(json, "mode", parallel_mode_name(spec->parallel.mode));
    doc_integer(json, "world", spec_world_size(spec));
    doc_integer(json, "micro_batches", micro_batches(spec));
    doc_integer(json, "parameters", model_parameters(&spec->model.config));
    struct err *err = fill_plan(spec, estimates, json);
    free(estimates);
    if (!err)
        err = place_need(spec, &total);
    if (err) {
        cJSON_Delete(json);
        return err;
    }
    size_t available = place_room(control);
    doc_integer(json, "memory_bytes", (int64_t)total);
    doc_integer(json, "memory_available_bytes", (int64_t)available);
    cJSON_AddBoolToObject(json, "fits", total <= available);
    add_warnings(json, spec);
    *out = json;
    return NULL;
}
