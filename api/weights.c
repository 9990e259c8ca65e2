/* Weights against the model's shape, by the headers of their files alone. */
#include <stdlib.h>

#include "api/inputs.h"
#include "daemon/plan/tensors.h"
#include "store/weights.h"

static void check(const struct weights *weights, const char *pointer,
                  const struct model_config *config, struct problems *problems)
{
    size_t n;
    const struct weights_tensor *tensors = weights_tensors(weights, &n);
    struct tensor_seen *seen = calloc(n + 1, sizeof *seen);
    if (!seen) {
        problems_add_err(problems, pointer, err_no_memory());
        return;
    }
    for (size_t i = 0; i < n; i++)
        seen[i] = (struct tensor_seen){
            .name = tensors[i].tensor->name,
            .file = safetensors_path(tensors[i].file),
            .dims = tensors[i].tensor->dims,
            .shape = tensors[i].tensor->shape,
            .dtype = safetensors_dtype_name(tensors[i].tensor->dtype),
        };
    model_tensors_check(config, seen, n, weights_path(weights), pointer, problems);
    free(seen);
}

void inputs_check_weights(const struct api_control *control, const char *pointer,
                          const char *directory, const struct model_config *config,
                          struct problems *problems)
{
    const struct file_roots roots = {control->roots, control->root_count};
    struct weights *weights;
    struct err *err = weights_open(directory, &roots, &weights);
    if (err && err_kind(err) == ERR_NOT_FOUND) {
        problems_add(problems, pointer, "%s; with \"init\": \"random\" it needs none",
                     err_message(err));
        err_free(err);
    } else if (err) {
        problems_add_err(problems, pointer, err);
    } else {
        check(weights, pointer, config, problems);
    }
    weights_close(weights);
}
