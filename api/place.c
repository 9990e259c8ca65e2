#include "api/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/plan.h"

static size_t usable(size_t bytes)
{
    return bytes - bytes / 16;
}

/* The plan's errors begin with the field that is wrong: data.sequence_length. */
static void add_plan_error(struct err *err, struct problems *problems)
{
    static const char *const sections[] = {"data.", "parallel.", "objective.", "batch."};
    char pointer[64] = "/parallel";
    const char *message = err_message(err);
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        if (strncmp(message, sections[i], strlen(sections[i])) == 0)
            snprintf(pointer, sizeof pointer, "/%.*s", (int)strcspn(message, " "), message);
    char *dot = strchr(pointer, '.');
    if (dot)
        *dot = '/';
    problems_add_err(problems, pointer, err);
}

/* All ranks of a replica: the others are the same. */
static struct err *estimate(const struct job_spec *spec, struct plan_estimate **out)
{
    *out = calloc((size_t)spec->parallel.degree, sizeof **out);
    if (!*out)
        return err_no_memory();
    struct err *err = plan_estimates(spec, spec->parallel.mode, spec->parallel.degree,
                                     spec_dtype_bytes(spec), *out);
    if (err) {
        free(*out);
        *out = NULL;
    }
    return err;
}

static void choose_parallel(const struct api_control *control, int slots, struct job_spec *spec,
                            struct problems *problems)
{
    struct err *err =
        plan_choose(spec, slots, usable(control->slot_bytes), spec_dtype_bytes(spec),
                    &spec->parallel.mode, &spec->parallel.degree, &spec->parallel.data);
    spec->parallel.automatic = false;
    if (err)
        add_plan_error(err, problems);
}

void place_check(const struct api_control *control, struct job_spec *spec,
                 struct problems *problems)
{
    if (spec->device == SPEC_DEVICE_AUTO)
        spec->device = control->no_cuda ? SPEC_DEVICE_CPU : SPEC_DEVICE_CUDA;
    if (spec->device == SPEC_DEVICE_CUDA && control->no_cuda)
        problems_add(problems, "/device", "cannot be cuda here: %s", control->no_cuda);
    bool cuda = spec->device == SPEC_DEVICE_CUDA;
    if (spec->precision == SPEC_PRECISION_AUTO)
        spec->precision = cuda ? SPEC_PRECISION_BF16 : SPEC_PRECISION_FP32;
    if (spec->precision == SPEC_PRECISION_BF16 && !cuda)
        problems_add(problems, "/precision", "is \"bf16\" but must be \"fp32\" on CPUs");
    int64_t slots = cuda ? control->gpu_slots : control->cpu_slots;
    if (spec->parallel.automatic)
        choose_parallel(control, (int)slots, spec, problems);
    int world = spec_world_size(spec);
    if (world > slots && !(cuda && control->no_cuda))
        problems_add(problems, "/parallel/degree",
                     "degree %d x data %d needs %d %s, but this node has %lld",
                     spec->parallel.degree, spec->parallel.data, world, cuda ? "GPUs" : "slots",
                     (long long)slots);
    struct plan_estimate *estimates = NULL;
    struct err *err = problems_count(problems) == 0 ? estimate(spec, &estimates) : NULL;
    free(estimates);
    if (err)
        add_plan_error(err, problems);
}

/* ---- Memory ---- */

/* *kept: of that, what does not depend on the sequence. */
static struct err *sum_need(const struct job_spec *spec, size_t *bytes, size_t *kept)
{
    struct plan_estimate *estimates;
    *bytes = *kept = 0;
    TRY(estimate(spec, &estimates));
    for (int rank = 0; rank < spec_world_size(spec); rank++) {
        const struct plan_estimate *e = &estimates[rank % spec->parallel.degree];
        const size_t parts[] = {e->weights_bytes, e->gradients_bytes, e->optimizer_bytes,
                                e->checkpoint_bytes};
        if (__builtin_add_overflow(*bytes, e->total_bytes, bytes))
            *bytes = SIZE_MAX;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (__builtin_add_overflow(*kept, parts[i], kept))
                *kept = SIZE_MAX;
    }
    free(estimates);
    return NULL;
}

struct err *place_need(const struct job_spec *spec, size_t *bytes)
{
    size_t kept;
    return sum_need(spec, bytes, &kept);
}

size_t place_room(const struct api_control *control)
{
    return usable(control->slot_bytes * (size_t)control->cpu_slots);
}

void place_fit(const struct api_control *control, const struct job_spec *spec,
               struct problems *problems)
{
    const double mib = 1024.0 * 1024.0;
    size_t bytes, kept, room = place_room(control);
    if (spec->device == SPEC_DEVICE_CUDA)
        return;
    struct err *err = sum_need(spec, &bytes, &kept);
    if (err)
        add_plan_error(err, problems);
    else if (bytes > room)
        problems_add(problems, kept > room ? "/parallel" : "/data/sequence_length",
                     "the job's %d ranks need %.0f MiB of memory, %.0f MiB of them however short "
                     "sequences are, but this node has %.0f MiB for them",
                     spec_world_size(spec), (double)bytes / mib, (double)kept / mib,
                     (double)room / mib);
}
