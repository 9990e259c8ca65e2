#include "daemon/control/places.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/file.h"
#include "daemon/base/log.h"
#include "daemon/control/directory.h"
#include "daemon/control/lock.h"

#define LOOK_MS 1000

struct places {
    const struct config *config;
    struct control *control;
    struct lock state, runtime;
    char *database; /* path */
    dev_t device;   /* of the file that the store has open */
    ino_t inode;
    char lost[600]; /* a sentence for when the path leads to another one or nowhere */
    char *url_path; /* tells where we listen */
    bool url_written;
    uv_timer_t timer;
    bool opened;
    char fault[600]; /* of the last look; "": none */
};

struct err *places_take(const struct config *config, struct places **out)
{
    struct places *p = calloc(1, sizeof *p);
    *out = p;
    if (!p)
        return err_no_memory();
    p->config = config;
    p->state.fd = p->runtime.fd = -1;
    TRY(directory_make(config->state_directory));
    TRY(directory_make(config->runtime_directory));
    TRY(lock_take(&p->state, config->state_directory, "lock"));
    return lock_take(&p->runtime, config->runtime_directory, "worker.lock");
}

/* ---- The database ---- */

struct err *places_opened_store(struct places *p)
{
    struct stat st;
    if (asprintf(&p->database, "%s/dllmd.db", p->config->state_directory) < 0) {
        p->database = NULL;
        return err_no_memory();
    }
    if (stat(p->database, &st) != 0)
        return err_errno(errno, "cannot look at %s", p->database);
    p->device = st.st_dev;
    p->inode = st.st_ino;
    snprintf(p->lost, sizeof p->lost,
             "The database %.400s was removed or replaced while this dllmd has it open: bring it "
             "back, or start dllmd again with the one that shall count",
             p->database);
    return NULL;
}

/* Nothing may be acknowledged that goes into a file which nobody will find. */
static const char *database_fault(void *places)
{
    const struct places *p = places;
    struct stat st;
    if (stat(p->database, &st) == 0 && st.st_dev == p->device && st.st_ino == p->inode)
        return NULL;
    return p->lost;
}

/* ---- Looking ---- */

/* So that others find a daemon that took any free port. */
static struct err *write_url(struct places *p)
{
    char line[128];
    int n = snprintf(line, sizeof line, "%s\n", api_url(p->control->api));
    TRY(file_replace(p->url_path, line, (size_t)n));
    p->url_written = true;
    return NULL;
}

/* Workers look for the socket where they were told: what is gone is made again. */
static struct err *mend_runtime(struct places *p)
{
    struct line_server *lines = p->control->lines;
    TRY(directory_make(p->config->runtime_directory));
    TRY(lock_keep(&p->runtime));
    if (!line_server_reached(lines)) {
        TRY(line_server_listen(lines));
        log_warning("%s led to us no more: it is made again", p->control->socket_path);
    }
    return access(p->url_path, F_OK) == 0 ? NULL : write_url(p);
}

/* The database first: without it the directories are not made again. */
static struct err *look(struct places *p)
{
    const char *lost = database_fault(p);
    if (lost)
        return err_new(ERR_IO, "%s", lost);
    TRY(lock_keep(&p->state));
    return mend_runtime(p);
}

const char *places_fault(struct places *p)
{
    bool well = places_well(p);
    char before[sizeof p->fault];
    memcpy(before, p->fault, sizeof before);
    struct err *err = look(p);
    snprintf(p->fault, sizeof p->fault, "%s", err ? err_message(err) : "");
    err_free(err);
    if (strcmp(before, p->fault) != 0) {
        if (!places_well(p))
            log_error("%s; nothing is started until this is mended", p->fault);
        else if (!well)
            log_info("all is in its place again");
        if (places_well(p))
            scheduler_wake(p->control);
    }
    return places_well(p) ? NULL : p->fault;
}

bool places_well(const struct places *p)
{
    return !p->fault[0];
}

static void on_timer(uv_timer_t *timer)
{
    struct places *p = timer->data;
    if (!p->control->stopping)
        places_fault(p);
}

/* ---- Life ---- */

struct err *places_open(struct places *p, struct control *c, const struct line_handlers *handlers)
{
    p->control = c;
    async_guard(c->async, database_fault, p);
    if (asprintf(&p->url_path, "%s/url", p->config->runtime_directory) < 0) {
        p->url_path = NULL;
        return err_no_memory();
    }
    TRY(line_server_open(c->loop, c->socket_path, handlers, &c->lines));
    TRY(write_url(p));
    uv_timer_init(c->loop, &p->timer);
    p->timer.data = p;
    uv_timer_start(&p->timer, on_timer, LOOK_MS, LOOK_MS);
    p->opened = true;
    return NULL;
}

void places_close(struct places *p)
{
    if (p->opened)
        uv_close((uv_handle_t *)&p->timer, NULL);
    p->opened = false;
}

void places_release(struct places *p)
{
    if (!p)
        return;
    struct err *err = p->url_written ? lock_keep(&p->runtime) : NULL;
    if (p->url_written && !err)
        unlink(p->url_path);
    err_free(err);
    lock_release(&p->state);
    lock_release(&p->runtime);
    free(p->url_path);
    free(p->database);
    free(p);
}
