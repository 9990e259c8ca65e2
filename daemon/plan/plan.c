/* From a job spec to the plan's inputs. */
#include "daemon/plan/plan.h"

int plan_windows(const struct model_config *model, int64_t *out, int *kind_of_layer)
{
    int n = 0;
    for (int64_t layer = 0; layer < model->layers; layer++) {
        int kind = 0;
        while (kind < n && out[kind] != model->window[layer])
            kind++;
        if (kind == n)
            out[n++] = model->window[layer];
        kind_of_layer[layer] = kind;
    }
    return n;
}

struct plan_shape plan_shape_of(const struct job_spec *spec)
{
    return (struct plan_shape){
        .mode = spec->parallel.mode,
        .causal = spec->objective.type == OBJECTIVE_AUTOREGRESSIVE,
        .degree = spec->parallel.degree,
        .views = spec->objective.views,
        .length = spec->data.sequence_length * spec->batch.micro_sequences,
        .block_size = spec->objective.block_size,
    };
}
