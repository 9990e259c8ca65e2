/* Administration: draining a node, a copy of the database. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "api/again.h"
#include "api/doc.h"
#include "api/present.h"
#include "api/routes.h"
#include "api/server.h"
#include "store/backup.h"

/* ---- POST /v1/nodes/{id}/drain ---- */

struct draining {
    bool on;
};

static struct err *write_draining(struct store_tx *tx, struct request *r)
{
    struct draining *d = r->state;
    struct store_node node;
    TRY(store_node_set_draining(tx, r->id, d->on));
    TRY(store_node_get(tx, r->id, &node));
    request_reply_json(r, 200, present_node(&node));
    return NULL;
}

/* The body is optional, and so is its one member. */
static bool read_draining(struct request *r, bool *on)
{
    cJSON *json = NULL;
    const cJSON *item;
    bool good = true;
    *on = true;
    if (r->body_bytes == 0)
        return true;
    if (!request_json(r, &json))
        return false;
    cJSON_ArrayForEach(item, json)
    {
        good = good && strcmp(item->string, "draining") == 0 && cJSON_IsBool(item);
        *on = cJSON_IsTrue(item);
    }
    cJSON_Delete(json);
    if (!good)
        request_reply_problem(r, 422, "invalid", NULL,
                              "The body may be {\"draining\": true} or {\"draining\": false}.");
    return good;
}

void route_node_drain(struct request *r)
{
    struct draining *d = calloc(1, sizeof *d);
    if (!d) {
        request_reply_err(r, err_no_memory());
        return;
    }
    r->state = d;
    r->free_state = free;
    if (request_query(r, NULL, 0) && read_draining(r, &d->on))
        request_write_once(r, write_draining);
}

/* ---- POST /v1/backup ---- */

struct backup {
    struct api *api;
    char *path;
    int64_t bytes;
    double made_s;
};

/* One at a time: a copy reads and writes as much as the database has. */
static void free_backup(void *state)
{
    struct backup *b = state;
    b->api->backing_up = false;
    free(b->path);
    free(b);
}

/* In the pool. */
static struct err *make_backup(struct store_tx *tx, struct request *r)
{
    struct backup *b = r->state;
    char name[40];
    bool found;
    TRY(again_answer(tx, r, &found));
    if (found)
        return NULL;
    b->made_s = store_now();
    time_t seconds = (time_t)b->made_s;
    struct tm utc;
    if (mkdir(b->api->backups, 0700) != 0 && errno != EEXIST)
        return err_errno(errno, "cannot make the directory %s", b->api->backups);
    gmtime_r(&seconds, &utc);
    strftime(name, sizeof name, "%Y%m%dT%H%M%S", &utc);
    int ms = (int)((b->made_s - (double)seconds) * 1000);
    if (asprintf(&b->path, "%s/dllmd-%s.%03dZ.db", b->api->backups, name, ms) < 0) {
        b->path = NULL;
        return err_no_memory();
    }
    return store_backup(tx, b->path, &b->bytes);
}

static struct err *tell(struct store_tx *tx, struct request *r)
{
    (void)tx;
    struct backup *b = r->state;
    cJSON *json = cJSON_CreateObject();
    doc_text(json, "path", b->path);
    doc_integer(json, "bytes", b->bytes);
    doc_time(json, "created_at", b->made_s);
    request_reply_json(r, 201, json);
    return NULL;
}

static void go_tell(struct request *r)
{
    request_write_once(r, tell);
}

void route_backup(struct request *r)
{
    if (!request_query(r, NULL, 0))
        return;
    if (r->api->backing_up) {
        request_reply_problem(r, 409, "conflict", NULL, "A backup is being written already.");
        return;
    }
    struct backup *b = calloc(1, sizeof *b);
    if (!b) {
        request_reply_err(r, err_no_memory());
        return;
    }
    b->api = r->api;
    b->api->backing_up = true;
    r->state = b;
    r->free_state = free_backup;
    r->next = go_tell;
    request_read(r, make_backup);
}
