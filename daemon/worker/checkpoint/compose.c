#include "daemon/worker/checkpoint/compose.h"

static bool add_parameter(cJSON *array, const struct parameter *p)
{
    cJSON *entry = cJSON_CreateObject(), *shape;
    if (!entry || !cJSON_AddItemToArray(array, entry) ||
        !cJSON_AddStringToObject(entry, "name", p->name) ||
        !(shape = cJSON_AddArrayToObject(entry, "shape")))
        return false;
    for (int i = 0; i < p->dims; i++)
        if (!cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)p->shape[i])))
            return false;
    return true;
}

static bool fill_head(cJSON *head, const struct checkpoint_facts *f,
                      const struct parameters *parameters)
{
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {
        {"version", CHECKPOINT_VERSION},
        {"job", f->job},
        {"attempt", f->attempt},
        {"step", f->step},
        {"optimizer_step", f->optimizer_step},
        {"data_position", f->data_position},
        {"seed", (int64_t)f->seed},
        {"world", f->world},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!cJSON_AddNumberToObject(head, numbers[i].key, (double)numbers[i].value))
            return false;
    cJSON *parallel = cJSON_AddObjectToObject(head, "parallel");
    cJSON *array = cJSON_AddArrayToObject(head, "parameters");
    if (!parallel || !array || !cJSON_AddStringToObject(parallel, "mode", f->mode) ||
        !cJSON_AddNumberToObject(parallel, "degree", f->degree) ||
        !cJSON_AddNumberToObject(parallel, "data", f->data))
        return false;
    for (int i = 0; i < parameters->n; i++)
        if (!add_parameter(array, &parameters->items[i]))
            return false;
    cJSON *spec = cJSON_Duplicate(f->spec, true);
    if (!cJSON_AddItemToObject(head, "spec", spec)) {
        cJSON_Delete(spec);
        return false;
    }
    return true;
}

cJSON *checkpoint_manifest_head(const struct checkpoint_facts *facts,
                                const struct parameters *parameters)
{
    cJSON *head = cJSON_CreateObject();
    if (head && fill_head(head, facts, parameters))
        return head;
    cJSON_Delete(head);
    return NULL;
}

cJSON *checkpoint_manifest_shard(int rank, int world, int64_t bytes, const char *xxh3,
                                 const cJSON *ranges)
{
    char name[CHECKPOINT_SHARD_BYTES];
    cJSON *entry = cJSON_CreateObject(), *copy = cJSON_Duplicate(ranges, true);
    checkpoint_shard_name(rank, world, name);
    if (entry && copy && cJSON_AddStringToObject(entry, "file", name) &&
        cJSON_AddNumberToObject(entry, "rank", rank) &&
        cJSON_AddNumberToObject(entry, "bytes", (double)bytes) &&
        cJSON_AddStringToObject(entry, "xxh3", xxh3) &&
        cJSON_AddItemToObject(entry, "ranges", copy))
        return entry;
    cJSON_Delete(copy);
    cJSON_Delete(entry);
    return NULL;
}

cJSON *checkpoint_manifest_whole(const cJSON *head, const char *id, double created_s, cJSON *shards)
{
    cJSON *whole = cJSON_Duplicate(head, true);
    if (whole && cJSON_AddStringToObject(whole, "id", id) &&
        cJSON_AddNumberToObject(whole, "created", created_s) &&
        cJSON_AddItemToObject(whole, "shards", shards))
        return whole;
    cJSON_Delete(shards);
    cJSON_Delete(whole);
    return NULL;
}
