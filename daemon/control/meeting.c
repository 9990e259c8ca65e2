#include "daemon/control/meeting.h"

#include <dirent.h>
#include <errno.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/doc.h"
#include "daemon/base/file.h"
#include "daemon/base/json.h"
#include "daemon/base/log.h"

#define KEY_BYTES 255
#define POST_BYTES (((size_t)64 << 10) / 3 * 4 + 4) /* base64 of 64 KiB */
#define SET_BYTES ((size_t)1000 << 10)              /* an answer is one line of 1 MiB at most */
#define SETS_MOST 1024
#define PREFIX "exchange-"
#define SUFFIX ".json"

struct set {
    struct set *next;
    struct run *run;
    char key[KEY_BYTES + 1];
    int posted;
    size_t bytes;
    bool saved; /* complete, and may be answered */
    struct async_item item;
    char *text;    /* being saved */
    char *posts[]; /* [world] */
};

struct meeting_sets {
    struct set *first;
    int count;
};

static void free_set(struct set *s, int world)
{
    for (int i = 0; i < world; i++)
        free(s->posts[i]);
    free(s->text);
    free(s);
}

void meeting_free(struct meeting_sets *sets)
{
    if (!sets)
        return;
    for (struct set *s = sets->first, *next; s; s = next) {
        next = s->next;
        free_set(s, s->run->world);
    }
    free(sets);
}

/* Finds the set of that key or makes it; NULL when memory is short or there are too many. */
static struct set *find(struct run *r, const char *key)
{
    if (!r->sets && !(r->sets = calloc(1, sizeof *r->sets)))
        return NULL;
    for (struct set *s = r->sets->first; s; s = s->next)
        if (strcmp(s->key, key) == 0)
            return s;
    if (r->sets->count >= SETS_MOST)
        return NULL;
    struct set *s = calloc(1, sizeof *s + (size_t)r->world * sizeof s->posts[0]);
    if (!s)
        return NULL;
    s->run = r;
    strcpy(s->key, key);
    s->next = r->sets->first;
    r->sets->first = s;
    r->sets->count++;
    return s;
}

static cJSON *answer(const struct set *s)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "type", "exchange");
    cJSON_AddStringToObject(json, "key", s->key);
    cJSON *data = cJSON_AddArrayToObject(json, "data");
    for (int i = 0; i < s->run->world; i++)
        doc_push(data, cJSON_CreateString(s->posts[i]));
    return json;
}

static void refuse(struct member *m, const char *key, const char *reason)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "type", "error");
    if (key)
        cJSON_AddStringToObject(json, "key", key);
    cJSON_AddStringToObject(json, "reason", reason);
    line_send(m->line, json);
}

/* ---- Saving ---- */

/* A key may hold any characters, so the file is named by its hash. */
static char *path_of(const struct run *r, const char *key)
{
    unsigned char hash[crypto_generichash_BYTES_MIN];
    char hex[2 * sizeof hash + 1], *path = NULL;
    crypto_generichash(hash, sizeof hash, (const unsigned char *)key, strlen(key), NULL, 0);
    sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
    return asprintf(&path, "%s/" PREFIX "%s" SUFFIX, r->directory, hex) < 0 ? NULL : path;
}

static struct err *save(void *arg)
{
    struct set *s = arg;
    char *path = path_of(s->run, s->key);
    struct err *err =
        path && s->text ? file_replace(path, s->text, strlen(s->text)) : err_no_memory();
    free(path);
    return err;
}

/* A set that could not be saved is answered all the same: only a daemon that dies in the middle of
 * the answers would have needed it. */
static void after_save(void *arg, struct err *err)
{
    struct set *s = arg;
    struct run *r = s->run;
    if (err)
        log_warning("an exchange is not saved: %s", err_message(err));
    err_free(err);
    free(s->text);
    s->text = NULL;
    s->saved = true;
    for (int i = 0; i < r->world; i++)
        if (r->members[i].line)
            line_send(r->members[i].line, answer(s));
    r->pending--;
    ending_check(r);
}

struct err *meeting_remove(struct run *r)
{
    for (const struct set *s = r->sets ? r->sets->first : NULL; s; s = s->next) {
        char *path = s->saved ? path_of(r, s->key) : NULL;
        if (path && unlink(path) != 0 && errno != ENOENT) {
            struct err *err = err_errno(errno, "cannot remove %s", path);
            free(path);
            return err;
        }
        free(path);
    }
    return NULL;
}

static void complete(struct set *s)
{
    cJSON *json = answer(s);
    s->text = json_print(json);
    cJSON_Delete(json);
    s->run->pending++;
    async_work(s->run->control->async, &s->item, save, s, after_save);
}

static struct err *load_one(struct run *r, const char *name)
{
    char *path = NULL, *text = NULL;
    size_t bytes;
    cJSON *json = NULL;
    if (asprintf(&path, "%s/%s", r->directory, name) < 0)
        return err_no_memory();
    struct err *err = file_read(path, (size_t)2 << 20, &text, &bytes);
    if (!err)
        err = json_parse(text, bytes, &json);
    const cJSON *key = cJSON_GetObjectItemCaseSensitive(json, "key");
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(json, "data"), *item;
    if (!err && cJSON_IsString(key) && strlen(key->valuestring) <= KEY_BYTES &&
        cJSON_GetArraySize(data) == r->world) {
        struct set *s = find(r, key->valuestring);
        cJSON_ArrayForEach(item, data)
        {
            if (s && cJSON_IsString(item) && (s->posts[s->posted] = strdup(item->valuestring)))
                s->posted++;
        }
        if (!s || s->posted != r->world)
            err = err_no_memory();
        else
            s->saved = true;
    }
    cJSON_Delete(json);
    free(text);
    free(path);
    return err;
}

struct err *meeting_load(struct run *r)
{
    DIR *dir = opendir(r->directory);
    if (!dir)
        return errno == ENOENT ? NULL : err_errno(errno, "cannot read %s", r->directory);
    struct err *err = NULL;
    for (struct dirent *entry; !err && (entry = readdir(dir));) {
        size_t n = strlen(entry->d_name), m = strlen(SUFFIX);
        if (n > m && strncmp(entry->d_name, PREFIX, strlen(PREFIX)) == 0 &&
            strcmp(entry->d_name + n - m, SUFFIX) == 0)
            err = load_one(r, entry->d_name);
        if (err && err_kind(err) != ERR_NO_MEMORY) { /* the ranks may be long past it */
            log_warning("an exchange is left out: %s", err_message(err));
            err_free(err);
            err = NULL;
        }
    }
    closedir(dir);
    return err;
}

/* ---- Posting ---- */

void meeting_post(struct member *m, const cJSON *message)
{
    struct run *r = m->run;
    const cJSON *key = cJSON_GetObjectItemCaseSensitive(message, "key");
    const cJSON *data = cJSON_GetObjectItemCaseSensitive(message, "data");
    if (!cJSON_IsString(key) || !key->valuestring[0] || strlen(key->valuestring) > KEY_BYTES) {
        refuse(m, NULL, "an exchange needs a key of 1 to 255 bytes");
        return;
    }
    if (!cJSON_IsString(data) || strlen(data->valuestring) > POST_BYTES) {
        refuse(m, key->valuestring, "an exchange needs data: base64 of at most 64 KiB");
        return;
    }
    struct set *s = find(r, key->valuestring);
    size_t bytes = strlen(data->valuestring);
    if (!s && r->sets && r->sets->count >= SETS_MOST) {
        refuse(m, key->valuestring, "there are too many sets");
    } else if (!s) {
        line_close(m->line); /* it posts again when there is memory */
    } else if (s->posts[m->rank]) {
        if (strcmp(s->posts[m->rank], data->valuestring) != 0)
            refuse(m, s->key, "this rank has posted other data under this key");
        else if (s->saved)
            line_send(m->line, answer(s));
    } else if (s->bytes + bytes > SET_BYTES) {
        refuse(m, s->key, "the set would not fit into one message of 1 MiB");
    } else if (!(s->posts[m->rank] = strdup(data->valuestring))) {
        line_close(m->line); /* likewise */
    } else {
        s->bytes += bytes + 4;
        if (++s->posted == r->world)
            complete(s);
    }
}
