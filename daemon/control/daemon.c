/* The daemon's parts, in the order in which they are opened; they are closed in reverse.
 *
 * An end on request: nothing new is accepted, what is on its way to the database arrives, the
 * loop's handles are closed, and the workers go on without us: they connect again to the next
 * daemon. An end by SIGKILL differs in nothing that matters, as the database says what is true.
 */
#include "daemon/control/daemon.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/directory.h"
#include "daemon/control/loop.h"
#include "daemon/control/places.h"
#include "daemon/control/watchdog.h"
#include "store/backup.h"
#include "store/nodes.h"

#define DRAIN_MS 10
#define GPUS_MOST 64

struct daemon {
    struct control control;
    const struct config *config;
    uv_loop_t loop;
    uv_timer_t drain;
    uv_signal_t sighup;
    char **roots; /* resolved */
    size_t root_count;
};

/* ---- The state directory ---- */

static char *join(const char *directory, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

static struct err *open_state(struct daemon *d)
{
    const struct config *config = d->config;
    char *database = join(config->state_directory, "dllmd.db");
    char *key = join(config->state_directory, "secret.key");
    char *datasets = join(config->state_directory, "datasets");
    struct err *err = database && key && datasets ? NULL : err_no_memory();
    if (!err)
        err = places_take(config, &d->control.places);
    if (!err)
        err = directory_make(datasets);
    if (!err) {
        mode_t mask = umask(0077);
        err = secret_key_load(key, d->control.key);
        umask(mask);
    }
    if (!err)
        err = store_open(database, NULL, &d->control.store);
    if (!err)
        err = places_opened_store(d->control.places);
    free(database);
    free(key);
    free(datasets);
    return err;
}

/* ---- This node ---- */

static size_t memory_bytes(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
}

static struct err *find_gpus(struct control *c)
{
    const char *plugin = c->config->cuda_plugin;
    char device[32];
    if (access(plugin, R_OK) != 0)
        return asprintf(&c->no_cuda, "the plugin %s is not installed", plugin) < 0 ? err_no_memory()
                                                                                   : NULL;
    do
        snprintf(device, sizeof device, "/dev/nvidia%lld", (long long)c->gpus);
    while (c->gpus < GPUS_MOST && access(device, F_OK) == 0 && ++c->gpus);
    if (c->gpus == 0 && !(c->no_cuda = strdup("this node has no GPU: there is no /dev/nvidia0")))
        return err_no_memory();
    return NULL;
}

struct registration {
    struct store_node node;
    int64_t id;
};

static struct err *write_node(struct store_tx *tx, void *arg)
{
    struct registration *r = arg;
    return store_node_register(tx, &r->node, store_now(), &r->id);
}

static struct err *register_node(struct control *c)
{
    char name[HOST_NAME_MAX + 1] = "local", resources[128];
    gethostname(name, sizeof name - 1);
    snprintf(resources, sizeof resources, "{\"memory_bytes\":%zu,\"cores\":%ld}", memory_bytes(),
             sysconf(_SC_NPROCESSORS_ONLN));
    struct registration r = {
        .node = {.name = name,
                 .version = DLLMD_VERSION,
                 .cpu_slots = c->config->slots,
                 .gpu_slots = c->gpus,
                 .resources_json = resources},
    };
    TRY(store_write_wait(c->store, write_node, &r));
    c->node_id = r.id;
    return NULL;
}

static struct err *resolve_roots(struct daemon *d)
{
    d->roots = calloc(d->config->root_count + 1, sizeof *d->roots);
    if (!d->roots)
        return err_no_memory();
    for (size_t i = 0; i < d->config->root_count; i++) {
        char *path = realpath(d->config->roots[i], NULL);
        if (path)
            d->roots[d->root_count++] = path;
        else
            log_debug("the root %s is left out: %s", d->config->roots[i], strerror(errno));
    }
    return NULL;
}

/* ---- The API's questions ---- */

static void on_changed(void *user)
{
    scheduler_wake(user);
}

static bool on_checkpoint(void *user, int64_t job_id)
{
    struct run *r = run_find(user, false, job_id);
    if (!r || r->stop != STOP_NOT || r->paused || run_slots(r) < r->world)
        return false;
    run_checkpoint_now(r);
    return true;
}

static const char *not_ready(void *user)
{
    const struct control *c = user;
    if (c->stopping || !c->ready)
        return c->stopping ? "The daemon is shutting down" : "The daemon is starting";
    return places_fault(c->places);
}

static void count(void *user, struct api_counters *out)
{
    const struct control *c = user;
    *out = (struct api_counters){
        .started_s = c->started_s,
        .workers_started_total = c->workers_started,
        .workers_lost_total = c->workers_lost,
        .records_total = c->records,
    };
    for (const struct run *r = c->runs; r; r = r->next) {
        int alive = run_slots(r);
        *(r->is_task ? &out->tasks : &out->workers) += alive;
        *(r->gpu < 0 ? &out->slots_in_use : &out->gpus_in_use) += alive;
        for (int i = 0; i < r->world; i++)
            out->workers_connected += r->members[i].line != NULL;
    }
}

static void make_face(struct daemon *d)
{
    struct control *c = &d->control;
    c->face = (struct api_control){
        .user = c,
        .cpu_slots = d->config->slots,
        .gpu_slots = c->gpus,
        .slot_bytes = memory_bytes() / (size_t)d->config->slots,
        .no_cuda = c->no_cuda,
        .roots = (const char *const *)d->roots,
        .root_count = d->root_count,
        .changed = on_changed,
        .checkpoint = on_checkpoint,
        .not_ready = not_ready,
        .counters = count,
    };
}

/* ---- End ---- */

static void close_all(struct daemon *d)
{
    struct control *c = &d->control;
    while (c->runs)
        run_drop(c->runs);
    scheduler_close(c);
    watchdog_close(c);
    places_close(c->places);
    api_close(c->api);
    async_close(c->async);
    uv_close((uv_handle_t *)&d->drain, NULL);
    uv_close((uv_handle_t *)&c->sigterm, NULL);
    uv_close((uv_handle_t *)&c->sigint, NULL);
    uv_close((uv_handle_t *)&d->sighup, NULL);
}

static void on_drain(uv_timer_t *timer)
{
    struct daemon *d = timer->data;
    if (async_pending(d->control.async) == 0)
        close_all(d);
}

static void stop(struct daemon *d)
{
    struct control *c = &d->control;
    if (c->stopping)
        return;
    c->stopping = true;
    api_stop(c->api);
    for (struct run *r = c->runs; r; r = r->next) {
        uv_timer_stop(&r->tick);
        for (int i = 0; i < r->world; i++) {
            struct member *m = &r->members[i];
            m->line = NULL; /* closed with the server */
            if (m->polling)
                uv_poll_stop(&m->poll);
            if (m->state == MEMBER_ALIVE)
                records_flush(m);
        }
    }
    line_server_close(c->lines);
    c->lines = NULL;
    uv_timer_start(&d->drain, on_drain, 0, DRAIN_MS);
}

static void on_signal(uv_signal_t *handle, int signum)
{
    struct daemon *d = handle->data;
    if (!d->control.stopping)
        log_info("%s: shutting down; workers go on", strsignal(signum));
    sd_notify(0, "STOPPING=1");
    stop(d);
}

static void on_reload(uv_signal_t *handle, int signum)
{
    (void)signum;
    struct daemon *d = handle->data;
    api_reload(d->control.api);
}

/* ---- Start ---- */

static void on_commit(void *user)
{
    struct control *c = user;
    if (c->api)
        api_committed(c->api);
}

static struct err *open_api(struct daemon *d)
{
    struct control *c = &d->control;
    const struct config *config = d->config;
    char *backups = join(config->state_directory, "backups");
    if (!backups)
        return err_no_memory();
    struct api_options options = {
        .address = config->listen_address,
        .port = config->listen_port,
        .insecure = config->insecure,
        .auth = config->auth,
        .tls_certificate = config->tls_certificate,
        .tls_key = config->tls_key,
        .hosts = (const char *const *)config->hosts,
        .host_count = config->host_count,
        .requests_per_s = config->requests_per_s,
        .backups_directory = backups,
    };
    struct err *err = store_backup_tidy(backups);
    if (err)
        log_warning("%s", err_message(err));
    err_free(err);
    err = api_open(&d->loop, c->async, &c->face, &options, &c->api);
    free(backups);
    return err;
}

static struct err *open_parts(struct daemon *d)
{
    struct control *c = &d->control;
    struct line_handlers handlers = {.user = c, .message = hello_message, .closed = hello_closed};
    TRY(find_gpus(c));
    TRY(register_node(c));
    TRY(resolve_roots(d));
    make_face(d);
    TRY(async_open(&d->loop, c->store, &c->async));
    TRY(watchdog_open(c));
    async_on_commit(c->async, on_commit, c);
    TRY(scheduler_open(c));
    c->socket_path = join(d->config->runtime_directory, "worker.sock");
    if (!c->socket_path)
        return err_no_memory();
    TRY(open_api(d));
    TRY(adopt_runs(c));
    return places_open(c->places, c, &handlers);
}

static void watch_signals(struct daemon *d)
{
    struct control *c = &d->control;
    signal(SIGPIPE, SIG_IGN);
    uv_timer_init(&d->loop, &d->drain);
    uv_signal_init(&d->loop, &c->sigterm);
    uv_signal_init(&d->loop, &c->sigint);
    uv_signal_init(&d->loop, &d->sighup);
    d->drain.data = c->sigterm.data = c->sigint.data = d->sighup.data = d;
    uv_signal_start(&c->sigterm, on_signal, SIGTERM);
    uv_signal_start(&c->sigint, on_signal, SIGINT);
    uv_signal_start(&d->sighup, on_reload, SIGHUP);
}

static struct err *serve(struct daemon *d)
{
    struct control *c = &d->control;
    watch_signals(d);
    struct err *err = open_parts(d);
    if (!err) {
        c->ready = true;
        log_info("dllmd %s serves %s at %s, %lld slots", DLLMD_VERSION, d->config->state_directory,
                 api_url(c->api), (long long)d->config->slots);
        sd_notify(0, "READY=1");
        scheduler_wake(c);
    } else if (c->async) {
        stop(d);
    } else {
        uv_close((uv_handle_t *)&d->drain, NULL);
        uv_close((uv_handle_t *)&c->sigterm, NULL);
        uv_close((uv_handle_t *)&c->sigint, NULL);
        uv_close((uv_handle_t *)&d->sighup, NULL);
    }
    uv_run(&d->loop, UV_RUN_DEFAULT);
    uv_loop_close(&d->loop);
    return err;
}

struct err *daemon_create_admin_token(const struct config *config, char token[API_TOKEN_BYTES],
                                      char name[API_TOKEN_BYTES])
{
    struct store *store = NULL;
    char *database = join(config->state_directory, "dllmd.db");
    if (sodium_init() < 0)
        return err_new(ERR_INTERNAL, "libsodium cannot be initialized");
    umask(0027);
    struct err *err = database ? directory_make(config->state_directory) : err_no_memory();
    if (!err)
        err = store_open(database, NULL, &store);
    if (!err)
        err = api_create_admin_token(store, token, name);
    store_close(store);
    free(database);
    return err;
}

struct err *daemon_run(const struct config *config)
{
    struct daemon d = {.config = config};
    d.control.config = config;
    d.control.loop = &d.loop;
    d.control.started_s = store_now();
    if (sodium_init() < 0)
        return err_new(ERR_INTERNAL, "libsodium cannot be initialized");
    umask(0027);
    struct err *err = open_state(&d);
    if (!err)
        err = launcher_open(config->launcher, config->runtime_directory, &d.control.launcher);
    if (!err)
        err = loop_open(&d.loop);
    if (!err)
        err = serve(&d);
    store_close(d.control.store);
    launcher_close(d.control.launcher);
    for (size_t i = 0; i < d.root_count; i++)
        free(d.roots[i]);
    free(d.roots);
    free(d.control.no_cuda);
    free(d.control.socket_path);
    places_release(d.control.places);
    return err;
}
