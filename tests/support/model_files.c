#include "tests/support/model_files.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "daemon/worker/model/parameters.h"
#include "store/half.h"

#define MAX_TENSORS 8192

static const struct {
    const char *name;
    enum safetensors_dtype dtype;
} dtypes[] = {{"F32", SAFETENSORS_F32}, {"BF16", SAFETENSORS_BF16}, {"F16", SAFETENSORS_F16}};

const char *model_files_dtype(const struct model_files *m, int i)
{
    return strcmp(m->dtype, "mixed") == 0 ? dtypes[i % 3].name : m->dtype;
}

float model_files_round(float value, const char *dtype)
{
    return strcmp(dtype, "BF16") == 0  ? bf16_to_f32(f32_to_bf16(value))
           : strcmp(dtype, "F16") == 0 ? f16_to_f32(f32_to_f16(value))
                                       : value;
}

static enum safetensors_dtype dtype_of(const char *name)
{
    for (size_t i = 0; i < 3; i++)
        if (strcmp(dtypes[i].name, name) == 0)
            return dtypes[i].dtype;
    return SAFETENSORS_F32;
}

/* The tensor's bytes as new memory. */
static void *convert(const float *values, int64_t n, enum safetensors_dtype dtype)
{
    float *wide = malloc((size_t)n * sizeof *wide);
    uint16_t *narrow = (uint16_t *)wide;
    for (int64_t i = 0; wide && i < n; i++) {
        if (dtype == SAFETENSORS_F32)
            wide[i] = values[i];
        else
            narrow[i] = dtype == SAFETENSORS_BF16 ? f32_to_bf16(values[i]) : f32_to_f16(values[i]);
    }
    return wide;
}

struct content {
    struct safetensor tensors[MAX_TENSORS];
    size_t n;
};

static struct err *add(struct content *c, const char *name, const struct parameter *shape,
                       const float *values, const char *dtype)
{
    enum safetensors_dtype type = dtype_of(dtype);
    void *data = convert(values, shape->count, type);
    if (!data || c->n == MAX_TENSORS)
        return err_no_memory();
    struct safetensor *t = &c->tensors[c->n++];
    *t = (struct safetensor){.name = name, .dtype = type, .dims = shape->dims, .data = data};
    memcpy(t->shape, shape->shape, sizeof shape->shape);
    return NULL;
}

static struct err *fill(const struct model_files *m, const struct parameters *p, float *flat,
                        struct content *c)
{
    for (int i = 0; i < p->n; i++) {
        const struct parameter *item = &p->items[i];
        if (!m->skip || strcmp(item->name, m->skip) != 0)
            TRY(add(c, item->name, item, flat + item->offset, model_files_dtype(m, i)));
    }
    if (m->tied_head) {
        float *embedding = flat + p->items[0].offset;
        if (m->tied_head == 2)
            embedding[p->items[0].count - 1] += 1;
        TRY(add(c, "lm_head.weight", &p->items[0], embedding, model_files_dtype(m, 0)));
    }
    if (m->extra) {
        const struct parameter vector = {.dims = 1, .shape = {4}, .count = 4};
        TRY(add(c, m->extra, &vector, flat, "F32"));
    }
    return NULL;
}

static struct err *write_shards(const struct model_files *m, const struct content *c)
{
    char name[64], path[4096];
    if (m->shards == 1) {
        snprintf(path, sizeof path, "%s/model.safetensors", m->directory);
        return safetensors_write(path, c->tensors, c->n, NULL, 0);
    }
    cJSON *index = cJSON_CreateObject(), *map = cJSON_AddObjectToObject(index, "weight_map");
    struct err *e = NULL;
    for (int s = 0; s < m->shards && !e; s++) {
        size_t begin = c->n * (size_t)s / (size_t)m->shards,
               end = c->n * (size_t)(s + 1) / (size_t)m->shards;
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", s + 1, m->shards);
        snprintf(path, sizeof path, "%s/%s", m->directory, name);
        for (size_t i = begin; i < end; i++)
            cJSON_AddStringToObject(map, c->tensors[i].name, name);
        e = safetensors_write(path, c->tensors + begin, end - begin, NULL, 0);
    }
    char *text = json_print(index);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", m->directory);
    if (!e)
        e = text ? file_replace(path, text, strlen(text)) : err_no_memory();
    cJSON_free(text);
    cJSON_Delete(index);
    return e;
}

static struct err *write_weights(const struct model_files *m, const struct parameters *p)
{
    float *flat = calloc((size_t)p->count, sizeof *flat);
    struct content *c = calloc(1, sizeof *c);
    struct err *e = flat && c ? NULL : err_no_memory();
    if (!e) {
        parameters_draw(p, m->seed, 0, p->count, flat);
        e = fill(m, p, flat, c);
    }
    if (!e)
        e = write_shards(m, c);
    for (size_t i = 0; c && i < c->n; i++)
        free((void *)c->tensors[i].data);
    free(c);
    free(flat);
    return e;
}

struct err *model_files_write(const struct model_files *m)
{
    cJSON *json;
    char path[4096];
    struct model_config config;
    struct problems problems = {0};
    struct parameters parameters;
    TRY(json_parse(m->config, strlen(m->config), &json));
    model_config_parse(json, "", &config, &problems);
    cJSON_Delete(json);
    struct err *e = NULL;
    if (problems_count(&problems))
        e = err_new(ERR_INVALID, "%s: %s", problems.items[0].path, problems.items[0].message);
    problems_free(&problems);
    if (e)
        return e;
    snprintf(path, sizeof path, "%s/config.json", m->directory);
    TRY(file_replace(path, m->config, strlen(m->config)));
    TRY(parameters_create(&config, &parameters));
    e = write_weights(m, &parameters);
    parameters_free(&parameters);
    return e;
}
