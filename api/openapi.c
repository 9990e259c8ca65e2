/* GET /openapi.json: the route table and the schemas as an OpenAPI 3.1 document. */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/doc.h"
#include "api/routes.h"
#include "api/schemas.h"

#define REFERENCE "#/components/schemas/"

static const char *const role_names[] = {"open", "read", "submit", "admin"};

static cJSON *reference(const char *schema)
{
    char text[96];
    cJSON *json = cJSON_CreateObject();
    snprintf(text, sizeof text, REFERENCE "%s", schema);
    doc_text(json, "$ref", text);
    return json;
}

static cJSON *text_schema(void)
{
    cJSON *json = cJSON_CreateObject();
    doc_text(json, "type", "string");
    return json;
}

static void add_content(cJSON *to, const char *type, cJSON *schema)
{
    cJSON *content = cJSON_GetObjectItemCaseSensitive(to, "content");
    if (!content)
        content = doc_item(to, "content", cJSON_CreateObject());
    cJSON *of_type = doc_item(content, type, cJSON_CreateObject());
    doc_item(of_type, "schema", schema);
}

/* ---- Parameters ---- */

static cJSON *add_parameter(cJSON *list, const char *in, const char *name, const char *summary,
                            const char *type)
{
    cJSON *json = doc_push(list, cJSON_CreateObject());
    doc_text(json, "name", name);
    doc_text(json, "in", in);
    doc_text(json, "description", summary);
    cJSON_AddBoolToObject(json, "required", strcmp(in, "path") == 0);
    cJSON *schema = doc_item(json, "schema", cJSON_CreateObject());
    doc_text(schema, "type", type);
    return schema;
}

static void add_parameters(cJSON *operation, const struct route *route)
{
    static const char *const types[] = {"integer", "boolean", "string"};
    cJSON *list = cJSON_CreateArray();
    if (strstr(route->pattern, "{id}"))
        doc_integer(add_parameter(list, "path", "id", "Its id.", "integer"), "minimum", 1);
    for (const struct parameter *p = route->parameters; p && p->name; p++) {
        cJSON *schema = add_parameter(list, "query", p->name, p->summary, types[p->type]);
        bool is_text = p->type == QUERY_TEXT;
        if (p->type == QUERY_BOOLEAN)
            continue;
        doc_integer(schema, is_text ? "minLength" : "minimum", p->least);
        doc_integer(schema, is_text ? "maxLength" : "maximum", p->most);
    }
    if (route->once)
        add_parameter(list, "header", "Idempotency-Key",
                      "A request that comes again with the same key gets the same answer.",
                      "string");
    if (route->match)
        add_parameter(list, "header", "If-Match", "Only while this is its ETag.", "string");
    if (strcmp(route->method, "GET") == 0 && route->reply)
        add_parameter(list, "header", "If-None-Match", "304 while this is its ETag.", "string");
    if (route->type && strcmp(route->type, "text/event-stream") == 0)
        add_parameter(list, "header", "Last-Event-ID", "The stream goes on behind this event.",
                      "string");
    doc_item(operation, "parameters", list);
}

/* ---- Answers ---- */

static cJSON *add_response(cJSON *responses, const char *status, const char *summary)
{
    cJSON *json = doc_item(responses, status, cJSON_CreateObject());
    doc_text(json, "description", summary);
    return json;
}

static void add_responses(cJSON *operation, const struct route *route)
{
    cJSON *responses = doc_item(operation, "responses", cJSON_CreateObject());
    char status[8];
    snprintf(status, sizeof status, "%d", route->status);
    cJSON *success = add_response(responses, status, route->status == 204 ? "Done." : "Success.");
    if (route->reply)
        add_content(success, "application/json", reference(route->reply));
    if (route->type)
        add_content(success, route->type, text_schema());
    if (strcmp(route->method, "GET") == 0 && route->reply)
        add_response(responses, "304", "It has the ETag that was sent.");
    if (route->body && strcmp(route->body, "JobSpec") == 0)
        add_content(add_response(responses, "200", "What was asked with dry_run."),
                    "application/json", reference("Plan"));
    add_content(add_response(responses, "default", "It was not done; the problem says why."),
                "application/problem+json", reference("Problem"));
}

/* "POST /v1/jobs/{id}/cancel" as "post_jobs_id_cancel". */
static void operation_id(const struct route *route, char *out, size_t size)
{
    const char *path = route->pattern;
    if (strncmp(path, "/v1", 3) == 0)
        path += 3;
    snprintf(out, size, "%s%s", route->method, strcmp(path, "/") == 0 ? "/index" : path);
    size_t to = 0;
    for (const char *p = out; *p; p++) {
        if (*p == '/' || *p == '.')
            out[to++] = '_';
        else if (*p != '{' && *p != '}')
            out[to++] = (char)tolower((unsigned char)*p);
    }
    out[to] = '\0';
}

static void add_operation(cJSON *paths, const struct route *route)
{
    char name[128], method[8];
    cJSON *path = cJSON_GetObjectItemCaseSensitive(paths, route->pattern);
    if (!path)
        path = doc_item(paths, route->pattern, cJSON_CreateObject());
    snprintf(method, sizeof method, "%s", route->method);
    for (char *p = method; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    cJSON *operation = doc_item(path, method, cJSON_CreateObject());
    operation_id(route, name, sizeof name);
    doc_text(operation, "operationId", name);
    doc_text(operation, "summary", route->summary);
    doc_text(operation, "x-role", role_names[route->role]);
    if (route->role == ROUTE_OPEN)
        doc_item(operation, "security", cJSON_CreateArray());
    add_parameters(operation, route);
    if (route->body) {
        cJSON *body = doc_item(operation, "requestBody", cJSON_CreateObject());
        cJSON_AddBoolToObject(body, "required", !route->body_optional);
        add_content(body, "application/json", reference(route->body));
    }
    add_responses(operation, route);
}

static void add_security(cJSON *json, cJSON *components)
{
    cJSON *schemes = doc_item(components, "securitySchemes", cJSON_CreateObject());
    cJSON *bearer = doc_item(schemes, "token", cJSON_CreateObject());
    doc_text(bearer, "type", "http");
    doc_text(bearer, "scheme", "bearer");
    cJSON *list = doc_item(json, "security", cJSON_CreateArray());
    doc_item(doc_push(list, cJSON_CreateObject()), "token", cJSON_CreateArray());
}

static struct err *describe(struct request *r)
{
    cJSON *schemas = schemas_all();
    if (!schemas)
        return err_no_memory();
    cJSON *json = cJSON_CreateObject();
    doc_text(json, "openapi", "3.1.0");
    cJSON *info = doc_item(json, "info", cJSON_CreateObject());
    doc_text(info, "title", "dllmd");
    doc_text(info, "version", DLLMD_VERSION);
    doc_text(info, "description",
             "A training service for diffusion language models. `x-role` is the least role of a "
             "token that may call an operation, where the daemon asks for tokens.");
    cJSON *paths = doc_item(json, "paths", cJSON_CreateObject());
    for (size_t i = 0; i < routes_count; i++)
        add_operation(paths, &routes[i]);
    cJSON *components = doc_item(json, "components", cJSON_CreateObject());
    doc_item(components, "schemas", schemas);
    add_security(json, components);
    request_reply_json(r, 200, json);
    return NULL;
}

void route_openapi(struct request *r)
{
    if (request_query(r, NULL, 0))
        request_work(r, describe);
}
