/* POST /v1/jobs.
 *
 * Three steps: the pool checks the spec and all that it names (and answers, if anything is wrong,
 * with everything that is), the writer inserts the job, and the daemon is told.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/again.h"
#include "api/doc.h"
#include "api/dryrun.h"
#include "api/inputs.h"
#include "api/place.h"
#include "api/present.h"
#include "api/routes.h"
#include "daemon/base/json.h"
#include "daemon/plan/plan.h"

#define SPEC_BYTES ((size_t)512 << 10) /* a resolved spec travels to its workers in one line */

struct submission {
    cJSON *json;
    struct job_spec spec;
    struct problems problems;
    bool dry_run;
    char *resolved; /* the spec as text */
};

static void free_submission(void *state)
{
    struct submission *s = state;
    cJSON_Delete(s->json);
    spec_free(&s->spec);
    problems_free(&s->problems);
    free(s->resolved);
    free(s);
}

/* ---- Checking ---- */

static cJSON *section(cJSON *json, const char *name)
{
    cJSON *item = cJSON_GetObjectItemCaseSensitive(json, name);
    return cJSON_IsObject(item) ? item : NULL;
}

/* Puts the absolute path where a path stands; NULL: there is none, or it is wrong. */
static const char *resolve(const struct api_control *control, cJSON *object, const char *pointer,
                           struct problems *problems)
{
    cJSON *item = cJSON_GetObjectItemCaseSensitive(object, "path");
    if (!cJSON_IsString(item) || item->valuestring[0] == '\0')
        return NULL; /* spec_parse says what is wrong */
    char *path = inputs_resolve(control, pointer, item->valuestring, problems);
    if (!path)
        return NULL;
    const char *set = cJSON_SetValuestring(item, path);
    if (!set)
        problems_add_err(problems, pointer, err_no_memory());
    free(path);
    return set;
}

static void read_config(const struct api_control *control, cJSON *model, const char *directory,
                        struct problems *problems)
{
    if (!directory || cJSON_GetObjectItemCaseSensitive(model, "config"))
        return;
    cJSON *config = inputs_model_config(control, "/model/path", directory, problems);
    doc_item(model, "config", config);
}

/* "/model/config is missing" says nothing new when its file could not be read. */
static void merge(struct problems *into, const struct problems *from, bool no_config)
{
    for (size_t i = 0; i < from->count; i++)
        if (!no_config || strcmp(from->items[i].path, "/model/config") != 0)
            problems_add(into, from->items[i].path, "%s", from->items[i].message);
    into->lost += from->lost;
    into->no_memory = into->no_memory || from->no_memory;
}

/* Fills s->spec; problems say what is wrong. */
static void check(struct submission *s, const struct api_control *control)
{
    struct problems of_files = {0}, of_spec = {0};
    cJSON *model = section(s->json, "model"), *data = section(s->json, "data");
    const char *directory = resolve(control, model, "/model/path", &of_files);
    read_config(control, model, directory, &of_files);
    bool no_config = problems_count(&of_files) > 0;
    if (directory)
        inputs_mask_token(control, s->json, directory, &of_files);
    const char *path = resolve(control, data, "/data/path", &of_files);
    if (path)
        inputs_check_data(control, "/data/path", path, &of_files);
    spec_parse(s->json, &s->spec, &of_spec);
    bool parsed = problems_count(&of_spec) == 0;
    merge(&s->problems, &of_spec, no_config);
    merge(&s->problems, &of_files, false);
    problems_free(&of_spec);
    problems_free(&of_files);
    if (!parsed)
        return;
    if (directory && !s->spec.model.random_init)
        inputs_check_weights(control, "/model/path", directory, &s->spec.model.config,
                             &s->problems);
    place_check(control, &s->spec, &s->problems);
    if (!s->dry_run && problems_count(&s->problems) == 0)
        place_fit(control, &s->spec, &s->problems);
}

static struct err *reply_plan(struct request *r, cJSON *resolved)
{
    struct submission *s = r->state;
    cJSON *plan;
    struct err *err = dryrun_plan(&s->spec, r->control, &plan);
    if (err) {
        cJSON_Delete(resolved);
        return err;
    }
    cJSON *json = cJSON_CreateObject();
    doc_item(json, "spec", resolved);
    doc_item(json, "plan", plan);
    request_reply_json(r, 200, json);
    return NULL;
}

/* In the pool. Leaves no answer when there is a job to insert. */
static struct err *check_spec(struct request *r)
{
    struct submission *s = r->state;
    check(s, r->control);
    if (problems_count(&s->problems)) {
        request_reply_problems(r, 422, "invalid-spec", "The job spec is wrong", &s->problems);
        return NULL;
    }
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(section(s->json, "model"), "config");
    cJSON *resolved = spec_to_json(&s->spec, config);
    s->resolved = json_print(resolved);
    if (!s->resolved) {
        cJSON_Delete(resolved);
        return err_no_memory();
    }
    if (strlen(s->resolved) > SPEC_BYTES) {
        cJSON_Delete(resolved);
        return err_new(ERR_INVALID, "the resolved spec has %zu bytes, but at most %zu are accepted",
                       strlen(s->resolved), SPEC_BYTES);
    }
    if (s->dry_run)
        return reply_plan(r, resolved);
    cJSON_Delete(resolved);
    return NULL;
}

/* ---- Writing ---- */

static struct err *insert(struct store_tx *tx, struct request *r)
{
    struct submission *s = r->state;
    double now_s = store_now();
    int64_t id;
    cJSON *json;
    struct store_job job = {
        .name = s->spec.name,
        .spec_json = s->resolved,
        .device = s->spec.device == SPEC_DEVICE_CUDA ? "cuda" : "cpu",
        .world = spec_world_size(&s->spec),
        .steps = s->spec.steps,
        .created_by = r->principal[0] ? r->principal : NULL,
    };
    TRY(store_job_insert(tx, &job, now_s, &id));
    TRY(present_job_whole(tx, id, &json));
    request_reply_json(r, 201, json);
    request_header(r, "Location", "/v1/jobs/%lld", (long long)id);
    return NULL;
}

static void go_insert(struct request *r)
{
    request_write_once(r, insert);
}

/* ---- The route ---- */

static void go_check(struct request *r)
{
    r->next = go_insert;
    request_work(r, check_spec);
}

void route_jobs_submit(struct request *r)
{
    struct submission *s = calloc(1, sizeof *s);
    if (!s) {
        request_reply_err(r, err_no_memory());
        return;
    }
    r->state = s;
    r->free_state = free_submission;
    const struct query queries[] = {{"dry_run", &s->dry_run}};
    if (!request_query(r, queries, 1) || !request_json(r, &s->json))
        return;
    if (!r->key || s->dry_run) {
        go_check(r);
        return;
    }
    r->next = go_check;
    request_read(r, again_look);
}
