#include "api/place.h"

#include "daemon/plan/plan.h"

static void choose_parallel(const struct api_control *control, int slots, struct job_spec *spec,
                            struct problems *problems)
{
    struct err *err =
        plan_choose(spec, slots, control->slot_bytes, spec->device == SPEC_DEVICE_CUDA ? 2 : 4,
                    &spec->parallel.mode, &spec->parallel.degree, &spec->parallel.data);
    spec->parallel.automatic = false;
    if (err)
        problems_add(problems, "/parallel", "%s", err_message(err));
    err_free(err);
}

void place_check(const struct api_control *control, struct job_spec *spec,
                 struct problems *problems)
{
    if (spec->device == SPEC_DEVICE_AUTO)
        spec->device = control->no_cuda ? SPEC_DEVICE_CPU : SPEC_DEVICE_CUDA;
    if (spec->device == SPEC_DEVICE_CUDA && control->no_cuda)
        problems_add(problems, "/device", "cannot be cuda here: %s", control->no_cuda);
    bool cuda = spec->device == SPEC_DEVICE_CUDA;
    int64_t slots = cuda ? control->gpu_slots : control->cpu_slots;
    if (spec->parallel.automatic)
        choose_parallel(control, (int)slots, spec, problems);
    int world = spec_world_size(spec);
    if (world > slots && !(cuda && control->no_cuda))
        problems_add(problems, "/parallel/degree",
                     "degree %d x data %d needs %d %s, but this node has %lld",
                     spec->parallel.degree, spec->parallel.data, world, cuda ? "GPUs" : "slots",
                     (long long)slots);
}
