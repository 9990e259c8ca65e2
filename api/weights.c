/* Weights against the model's shape, by the file's header alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/inputs.h"
#include "daemon/plan/tensors.h"
#include "store/safetensors.h"

#define PROBLEMS_MOST 20 /* of one file; a file of another model has hundreds */

struct check {
    const struct safetensors *file;
    const char *pointer;
    struct problems *problems;
    int wrong;
    size_t known; /* tensors of the decoder that the file has */
};

static void shape_text(const int64_t *shape, int dims, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < dims && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
}

static void expect(struct check *c, const struct model_tensor *expected)
{
    const char *name = expected->name;
    const int64_t *shape = expected->shape;
    const struct safetensor *t = safetensors_find(c->file, name);
    int dims = expected->dims;
    c->known += t != NULL;
    if (c->wrong >= PROBLEMS_MOST)
        return;
    char want[64], is[160];
    shape_text(shape, dims, want, sizeof want);
    if (!t) {
        c->wrong++;
        problems_add(c->problems, c->pointer, "%s lacks the tensor %s %s",
                     safetensors_path(c->file), name, want);
    } else if (t->dims != dims || memcmp(t->shape, shape, (size_t)dims * sizeof *shape) != 0) {
        c->wrong++;
        shape_text(t->shape, t->dims, is, sizeof is);
        problems_add(c->problems, c->pointer, "%s: %s is %s, but config.json asks for %s",
                     safetensors_path(c->file), name, is, want);
    } else if (t->dtype != SAFETENSORS_F32 && t->dtype != SAFETENSORS_BF16 &&
               t->dtype != SAFETENSORS_F16) {
        c->wrong++;
        problems_add(c->problems, c->pointer, "%s: %s is %s, but must be F32, BF16 or F16",
                     safetensors_path(c->file), name, safetensors_dtype_name(t->dtype));
    }
}

void inputs_check_weights(const struct api_control *control, const char *pointer,
                          const char *directory, const struct model_config *config,
                          struct problems *problems)
{
    struct check c = {.pointer = pointer, .problems = problems};
    struct safetensors *file = NULL;
    char *path = NULL;
    struct err *err =
        asprintf(&path, "%s/model.safetensors", directory) < 0 ? err_no_memory() : NULL;
    if (!err && !inputs_allowed(control, pointer, path, problems)) {
        free(path);
        return;
    }
    if (!err)
        err = safetensors_open(path, &file);
    if (err && err_kind(err) == ERR_NOT_FOUND) {
        problems_add(problems, pointer,
                     "%s has no model.safetensors; with \"init\": \"random\" it needs none",
                     directory);
        err_free(err);
    } else if (err) {
        problems_add_err(problems, pointer, err);
    } else {
        c.file = file;
        struct model_tensors_walk walk = {0};
        struct model_tensor expected;
        while (model_tensors_next(config, &walk, &expected))
            expect(&c, &expected);
        if (config->tie_embeddings) /* may be there, is not read */
            c.known += safetensors_find(file, "lm_head.weight") != NULL;
        if (c.wrong == 0 && c.known < safetensors_count(file))
            problems_add(problems, pointer, "%s has %zu tensors that this decoder does not have",
                         path, safetensors_count(file) - c.known);
    }
    safetensors_close(file);
    free(path);
}
