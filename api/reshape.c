#include "api/reshape.h"

#include <string.h>

#include "api/doc.h"
#include "api/place.h"
#include "daemon/base/json.h"

/* What a body may hold: nothing but what changes no number of the training. */
static void check_keys(const cJSON *body, struct problems *problems)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, body)
    {
        char pointer[80];
        if (strcmp(item->string, "parallel") == 0)
            continue;
        snprintf(pointer, sizeof pointer, "/%.64s", item->string);
        problems_add(problems, pointer,
                     "cannot be changed of a job that exists; parallel can, and nothing else");
    }
}

/* The job's spec with another section `parallel`. */
static struct err *parse(const struct request *r, const struct store_job *job, const cJSON *body,
                         struct job_spec *spec, struct problems *problems, cJSON **resolved)
{
    cJSON *json;
    *resolved = NULL;
    TRY(json_parse(job->spec_json, strlen(job->spec_json), &json));
    cJSON *parallel = cJSON_Duplicate(cJSON_GetObjectItemCaseSensitive(body, "parallel"), true);
    if (cJSON_HasObjectItem(body, "parallel") && !parallel) {
        cJSON_Delete(json);
        return err_no_memory();
    }
    if (parallel) {
        cJSON_DeleteItemFromObjectCaseSensitive(json, "parallel");
        cJSON_AddItemToObject(json, "parallel", parallel);
    }
    check_keys(body, problems);
    spec_parse(json, spec, problems);
    if (problems_count(problems) == 0)
        place_check(r->control, spec, problems);
    if (problems_count(problems) == 0)
        place_fit(r->control, spec, problems);
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(json, "model");
    if (problems_count(problems) == 0)
        *resolved = spec_to_json(spec, cJSON_GetObjectItemCaseSensitive(model, "config"));
    cJSON_Delete(json);
    return problems_count(problems) || *resolved ? NULL : err_no_memory();
}

static struct err *apply(struct store_tx *tx, struct request *r, const struct store_job *job,
                         const cJSON *body, bool *answered)
{
    struct job_spec spec;
    struct problems problems = {0};
    cJSON *resolved;
    struct err *err = parse(r, job, body, &spec, &problems, &resolved);
    char *text = json_print(resolved);
    if (!err && problems_count(&problems)) {
        request_reply_problems(r, 422, "invalid-spec", "The job cannot go on so", &problems);
        *answered = true;
    } else if (!err) {
        err = text ? store_job_set_spec(tx, job->id, text, spec_world_size(&spec), store_now())
                   : err_no_memory();
    }
    cJSON_free(text);
    cJSON_Delete(resolved);
    problems_free(&problems);
    spec_free(&spec);
    return err;
}

struct err *reshape(struct store_tx *tx, struct request *r, const struct store_job *job,
                    bool *answered)
{
    cJSON *body;
    *answered = false;
    if (job->state != STORE_JOB_PAUSED)
        return err_new(ERR_CONFLICT,
                       "job %lld is %s: it can be given another parallelism while it is paused",
                       (long long)job->id, store_job_state_name(job->state));
    TRY(doc_read_object(r->body, r->body_bytes, "the body", &body));
    struct err *err = apply(tx, r, job, body, answered);
    cJSON_Delete(body);
    return err;
}
