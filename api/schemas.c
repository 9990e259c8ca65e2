/* What present.c, dryrun.c and the routes make, once more as a table of members. Objects have these
 * members and no others; the tests hold the running server to it.
 *
 * A type is "text", "int", "num", "bool", "time", "object" (any), or "word,word,…" (one of these
 * texts); "[X]" is an array of X, "{X}" an object whose members are all X, a name with a capital is
 * a schema; "?" behind it: or null.
 */
#include "api/schemas.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/spec.h"

struct member {
    const char *name, *type, *summary;
    bool optional;
};

#define JOB_STATES "queued,preparing,starting,running,restarting,paused,succeeded,failed,cancelled"

#define JOB_MEMBERS                                                                                \
    {"id", "int", NULL, false}, {"name", "text", NULL, false}, {"state", JOB_STATES, NULL, false}, \
        {"intent", "run,pause,cancel", "What was asked for last.", false},                         \
        {"reason", "text?", "A sentence: why it is in this state.", false},                        \
        {"device", "cpu,cuda", NULL, false}, {"world", "int", "Ranks.", false},                    \
        {"steps", "int", "To do.", false}, {"step", "int", "Done.", false},                        \
        {"attempt", "int", "Attempts begun.", false},                                              \
        {"restarts", "int", "That restart.max counts.", false},                                    \
        {"dataset_id", "int?", NULL, false},                                                       \
        {"created_by", "text?", "The token's name; null where none was given.", false},            \
        {"created_at", "time", NULL, false}, {"started_at", "time?", NULL, false},                 \
        {"finished_at", "time?", NULL, false},                                                     \
    {                                                                                              \
        "updated_at", "time?", NULL, false                                                         \
    }

static const struct member job_summary[] = {JOB_MEMBERS, {0}};
static const struct member job[] = {
    JOB_MEMBERS,
    {"latest", "{Latest}", "The newest value of each metric.", false},
    {"seconds_left", "num?", "While it runs: by the newest step's time.", false},
    {"spec", "JobSpec", "With every default written out.", false},
    {"attempts", "[Attempt]", NULL, false},
    {0},
};
static const struct member latest[] = {
    {"step", "int", NULL, false},
    {"value", "Number", NULL, false},
    {0},
};
static const struct member attempt[] = {
    {"number", "int", NULL, false},
    {"state", "starting,running,stopping,ended", NULL, false},
    {"outcome", "done,stopped,failed?", NULL, false},
    {"reason", "text?", NULL, false},
    {"start_step", "int", NULL, false},
    {"created_at", "time", NULL, false},
    {"ended_at", "time?", NULL, false},
    {"lease_until", "time?", "Its workers go on until then without the daemon.", false},
    {"workers", "[Worker]", NULL, false},
    {0},
};
static const struct member worker[] = {
    {"rank", "int", NULL, false},
    {"node_id", "int", NULL, false},
    {"gpu", "int?", NULL, false},
    {"state", "launching,launched,running,ended", NULL, false},
    {"pid", "int?", NULL, false},
    {"device", "text?", NULL, false},
    {"threads", "int", NULL, false},
    {"memory_bytes", "int", "Planned.", false},
    {"exit_status", "done,stopped,error,killed?", NULL, false},
    {"exit_kind", "text?", NULL, false},
    {"reason", "text?", NULL, false},
    {"started_at", "time?", NULL, false},
    {"ended_at", "time?", NULL, false},
    {0},
};
static const struct member job_page[] = {
    {"jobs", "[JobSummary]", NULL, false},
    {"next_cursor", "text?", "Null: this was the last page.", false},
    {0},
};
static const struct member metrics[] = {
    {"job_id", "int", NULL, false},
    {"series", "{Series}", "By the metric's name.", false},
    {0},
};
static const struct member series[] = {
    {"steps", "[int]", "Ascending.", false},
    {"values", "[Number]", "One a step.", false},
    {"total", "int", "Points there are.", false},
    {"sampled", "bool", "Some of them are left out.", false},
    {0},
};
static const struct member event[] = {
    {"id", "int", "Grows over all jobs.", false},
    {"job_id", "int", NULL, false},
    {"time", "time", NULL, false},
    {"type", "text",
     "state, intent, rewind (points beyond data.step were taken back), checkpoint, "
     "worker, error, or a worker's own word.",
     false},
    {"attempt", "int", NULL, true},
    {"rank", "int", NULL, true},
    {"from", JOB_STATES, NULL, true},
    {"to", JOB_STATES, NULL, true},
    {"message", "text?", NULL, false},
    {"data", "object", NULL, true},
    {0},
};
static const struct member event_page[] = {
    {"events", "[Event]", NULL, false},
    {"next_cursor", "text?", NULL, false},
    {0},
};
static const struct member logs[] = {
    {"job_id", "int", NULL, false},
    {"attempt", "int", "0: none has begun.", false},
    {"logs", "[Log]", NULL, false},
    {0},
};
static const struct member log_of_rank[] = {
    {"rank", "int", NULL, false},
    {"text", "text", NULL, false},
    {0},
};
static const struct member checkpoint[] = {
    {"id", "int", NULL, false},
    {"job_id", "int", NULL, false},
    {"attempt", "int", NULL, false},
    {"step", "int", NULL, false},
    {"bytes", "int", NULL, false},
    {"directory", "text", NULL, false},
    {"deleting", "bool", "Its files are being removed.", false},
    {"created_at", "time", NULL, false},
    {0},
};
static const struct member checkpoint_page[] = {
    {"checkpoints", "[Checkpoint]", NULL, false},
    {"next_cursor", "text?", NULL, false},
    {0},
};
static const struct member dataset[] = {
    {"id", "int", NULL, false},
    {"hash", "text", "Of everything that made it.", false},
    {"name", "text?", NULL, false},
    {"path", "text", NULL, false},
    {"documents", "int", NULL, false},
    {"tokens", "int", NULL, false},
    {"bytes", "int", NULL, false},
    {"unigram_entropy", "Number", "Nats a token.", false},
    {"data", "object", "The `data` of the spec that made it first.", false},
    {"created_at", "time", NULL, false},
    {0},
};
static const struct member dataset_page[] = {
    {"datasets", "[Dataset]", NULL, false},
    {"next_cursor", "text?", NULL, false},
    {0},
};
static const struct member task[] = {
    {"id", "int", NULL, false},
    {"type", "prepare,export,sample,acceptance,features", NULL, false},
    {"state", "queued,running,succeeded,failed,cancelled", NULL, false},
    {"reason", "text?", NULL, false},
    {"job_id", "int?", NULL, false},
    {"dataset_id", "int?", "That it made.", false},
    {"progress", "Progress", NULL, false},
    {"parameters", "object", NULL, false},
    {"result", "object?", NULL, false},
    {"pid", "int?", NULL, false},
    {"created_by", "text?", NULL, false},
    {"created_at", "time", NULL, false},
    {"started_at", "time?", NULL, false},
    {"finished_at", "time?", NULL, false},
    {0},
};
static const struct member progress[] = {
    {"done", "int", NULL, false},
    {"total", "int?", NULL, false},
    {"unit", "text?", NULL, false},
    {0},
};
static const struct member task_page[] = {
    {"tasks", "[Task]", NULL, false},
    {"next_cursor", "text?", NULL, false},
    {0},
};
static const struct member node[] = {
    {"id", "int", NULL, false},
    {"name", "text", NULL, false},
    {"address", "text?", "Null: this node.", false},
    {"version", "text", NULL, false},
    {"draining", "bool", "It gets no new work.", false},
    {"cpu_slots", "int", NULL, false},
    {"gpu_slots", "int", NULL, false},
    {"resources", "object", NULL, false},
    {"load", "Load", "Of the node that is asked: what it does now.", true},
    {"registered_at", "time", NULL, false},
    {"seen_at", "time", NULL, false},
    {0},
};
static const struct member load[] = {
    {"cpu_slots_in_use", "int", NULL, false},
    {"gpu_slots_in_use", "int", NULL, false},
    {"started_at", "time", "When its daemon started.", false},
    {0},
};
static const struct member nodes[] = {{"nodes", "[Node]", NULL, false}, {0}};
static const struct member drain[] = {
    {"draining", "bool", "Default: true.", true},
    {0},
};
static const struct member backup[] = {
    {"path", "text", "A file on the daemon's machine.", false},
    {"bytes", "int", NULL, false},
    {"created_at", "time", NULL, false},
    {0},
};

#define TOKEN_MEMBERS                                                                              \
    {"id", "int", NULL, false}, {"name", "text", NULL, false},                                     \
        {"role", "read,submit,admin,agent", NULL, false}, {"created_at", "time", NULL, false},     \
        {"expires_at", "time?", NULL, false},                                                      \
    {                                                                                              \
        "revoked_at", "time?", NULL, false                                                         \
    }

static const struct member token[] = {TOKEN_MEMBERS, {0}};
static const struct member new_token[] = {
    TOKEN_MEMBERS,
    {"token", "text", "The secret: Authorization: Bearer TOKEN.", false},
    {0},
};
static const struct member tokens[] = {{"tokens", "[Token]", NULL, false}, {0}};
static const struct member me[] = {
    {"name", "text?", "The token's name; null where none was sent.", false},
    {"role", "read,submit,admin", "Admin where no token is needed.", false},
    {0},
};
static const struct member token_request[] = {
    {"name", "text", "1 to 100 bytes; no other token that is not revoked has it.", false},
    {"role", "read,submit,admin,agent", NULL, false},
    {"expires_in_s", "num", "Seconds from now; default: it does not expire.", true},
    {0},
};
static const struct member resume[] = {
    {"parallel", "Parallel", "As in a spec; default: as before.", true},
    {0},
};
static const struct member parallel[] = {
    {"mode", "none,bp,cp,csbp", NULL, true},
    {"degree", "int", "Ranks that share a sequence.", true},
    {"data", "int", "Groups that train side by side.", true},
    {0},
};
static const struct member health[] = {
    {"status", "ok", NULL, false},
    {"version", "text", NULL, false},
    {0},
};
static const struct member readiness[] = {{"status", "ready", NULL, false}, {0}};
static const struct member plan_answer[] = {
    {"spec", "JobSpec", NULL, false},
    {"plan", "PlanDetail", NULL, false},
    {0},
};
static const struct member plan_detail[] = {
    {"device", "cpu,cuda", NULL, false},
    {"mode", "none,bp,cp,csbp", NULL, false},
    {"world", "int", NULL, false},
    {"micro_batches", "int", NULL, false},
    {"parameters", "int", NULL, false},
    {"ranks", "[PlanRank]", NULL, false},
    {"modes", "{PlanMode}", "What the neediest rank needs in each mode.", false},
    {"memory_bytes", "int", "Of all ranks.", false},
    {"memory_available_bytes", "int", NULL, false},
    {"fits", "bool", NULL, false},
    {"warnings", "[text]", "What is possible but may not be meant.", false},
    {0},
};
static const struct member plan_rank[] = {
    {"rank", "int", NULL, false},
    {"replica", "int", NULL, false},
    {"group_rank", "int", NULL, false},
    {"rows", "int", NULL, false},
    {"loss_rows", "int", NULL, false},
    {"visible_pairs", "int", NULL, false},
    {"memory_bytes", "{int}", NULL, false},
    {"received_bytes_per_step", "{int}", NULL, false},
    {0},
};
static const struct member plan_mode[] = {
    {"degree", "int", NULL, false},
    {"visible_pairs", "int", NULL, false},
    {"memory_bytes", "{int}", NULL, false},
    {"received_bytes_per_step", "{int}", NULL, false},
    {0},
};
static const struct member problem[] = {
    {"type", "text", "urn:dllmd:problem: and a word for programs.", false},
    {"title", "text", NULL, false},
    {"status", "int", NULL, false},
    {"detail", "text?", "A sentence for people.", false},
    {"errors", "[ProblemItem]", "All that is wrong.", true},
    {0},
};
static const struct member problem_item[] = {
    {"pointer", "text", "The field of the body (RFC 6901).", true},
    {"parameter", "text", "The parameter of the query.", true},
    {"detail", "text", NULL, false},
    {0},
};

static const struct {
    const char *name;
    const struct member *members;
} objects[] = {
    {"Attempt", attempt},
    {"Backup", backup},
    {"Checkpoint", checkpoint},
    {"CheckpointPage", checkpoint_page},
    {"Dataset", dataset},
    {"DatasetPage", dataset_page},
    {"Drain", drain},
    {"Event", event},
    {"EventPage", event_page},
    {"Health", health},
    {"Job", job},
    {"JobPage", job_page},
    {"JobSummary", job_summary},
    {"Latest", latest},
    {"Load", load},
    {"Log", log_of_rank},
    {"Logs", logs},
    {"Me", me},
    {"Metrics", metrics},
    {"NewToken", new_token},
    {"Node", node},
    {"Nodes", nodes},
    {"Parallel", parallel},
    {"Plan", plan_answer},
    {"PlanDetail", plan_detail},
    {"PlanMode", plan_mode},
    {"PlanRank", plan_rank},
    {"Problem", problem},
    {"ProblemItem", problem_item},
    {"Progress", progress},
    {"Readiness", readiness},
    {"Resume", resume},
    {"Series", series},
    {"Task", task},
    {"TaskPage", task_page},
    {"Token", token},
    {"TokenRequest", token_request},
    {"Tokens", tokens},
    {"Worker", worker},
};

/* ---- From the notation to a schema ---- */

static bool add_name(cJSON *schema, const char *name, bool nullable)
{
    cJSON *type = nullable ? cJSON_AddArrayToObject(schema, "type") : NULL;
    if (!nullable)
        return cJSON_AddStringToObject(schema, "type", name);
    return cJSON_AddItemToArray(type, cJSON_CreateString(name)) &&
           cJSON_AddItemToArray(type, cJSON_CreateString("null"));
}

static bool add_words(cJSON *schema, const char *words, size_t n, bool nullable)
{
    cJSON *list = cJSON_AddArrayToObject(schema, "enum");
    for (const char *end = words + n; words < end;) {
        size_t word = strcspn(words, ",?");
        char text[40];
        snprintf(text, sizeof text, "%.*s", (int)word, words);
        if (!cJSON_AddItemToArray(list, cJSON_CreateString(text)))
            return false;
        words += word + 1;
    }
    return (!nullable || cJSON_AddItemToArray(list, cJSON_CreateNull())) &&
           add_name(schema, "string", nullable);
}

static bool add_reference(cJSON *schema, const char *name, size_t n)
{
    char reference[80];
    snprintf(reference, sizeof reference, "#/components/schemas/%.*s", (int)n, name);
    return cJSON_AddStringToObject(schema, "$ref", reference);
}

/* Writes what `type[0 .. n)` says into the schema. */
static bool add_type(cJSON *schema, const char *type, size_t n)
{
    static const struct {
        const char *ours, *theirs;
    } names[] = {{"text", "string"},  {"int", "integer"}, {"num", "number"},
                 {"bool", "boolean"}, {"time", "string"}, {"object", "object"}};
    bool nullable = type[n - 1] == '?';
    n -= nullable;
    if (type[0] == '[' || type[0] == '{') {
        bool list = type[0] == '[';
        cJSON *inner = cJSON_AddObjectToObject(schema, list ? "items" : "additionalProperties");
        return inner && add_name(schema, list ? "array" : "object", nullable) &&
               add_type(inner, type + 1, n - 2);
    }
    if (isupper((unsigned char)type[0]))
        return add_reference(schema, type, n);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strlen(names[i].ours) != n || strncmp(names[i].ours, type, n) != 0)
            continue;
        if (strncmp(type, "time", n) == 0 &&
            !cJSON_AddStringToObject(schema, "format", "date-time"))
            return false;
        return add_name(schema, names[i].theirs, nullable);
    }
    return add_words(schema, type, n, nullable);
}

static bool add_object(cJSON *all, const char *name, const struct member *members)
{
    cJSON *schema = cJSON_AddObjectToObject(all, name);
    cJSON *properties = cJSON_AddObjectToObject(schema, "properties");
    cJSON *required = cJSON_AddArrayToObject(schema, "required");
    bool good = properties && required && cJSON_AddStringToObject(schema, "type", "object") &&
                cJSON_AddFalseToObject(schema, "additionalProperties");
    for (const struct member *m = members; good && m->name; m++) {
        cJSON *property = cJSON_AddObjectToObject(properties, m->name);
        good = property && add_type(property, m->type, strlen(m->type)) &&
               (!m->summary || cJSON_AddStringToObject(property, "description", m->summary)) &&
               (m->optional || cJSON_AddItemToArray(required, cJSON_CreateString(m->name)));
    }
    return good;
}

/* JSON has no numbers for these. */
static bool add_number(cJSON *all)
{
    cJSON *schema = cJSON_AddObjectToObject(all, "Number");
    cJSON *either = cJSON_AddArrayToObject(schema, "oneOf");
    cJSON *number = cJSON_CreateObject(), *word = cJSON_CreateObject();
    bool good = cJSON_AddItemToArray(either, number) && cJSON_AddItemToArray(either, word);
    return good && add_type(number, "num", 3) && add_type(word, "nan,inf,-inf", 12);
}

cJSON *schemas_all(void)
{
    cJSON *all = cJSON_CreateObject();
    bool good = all != NULL;
    for (size_t i = 0; good && i < sizeof objects / sizeof objects[0]; i++)
        good = add_object(all, objects[i].name, objects[i].members);
    cJSON *any = good ? cJSON_AddObjectToObject(all, "Object") : NULL;
    good = any && cJSON_AddStringToObject(any, "type", "object") && add_number(all);
    cJSON *spec = good ? spec_schema() : NULL;
    cJSON_DeleteItemFromObjectCaseSensitive(spec, "$schema"); /* the document says which */
    if (!spec || !cJSON_AddItemToObject(all, "JobSpec", spec)) {
        cJSON_Delete(spec);
        cJSON_Delete(all);
        return NULL;
    }
    return all;
}
