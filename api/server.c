/* libmicrohttpd under libuv.
 *
 * MHD runs without a thread: it shows one epoll descriptor, the loop polls it and calls MHD_run()
 * when something is ready, or when MHD's own timeout is over. A request whose answer needs the disk
 * is suspended and resumed by its last step (request.c); MHD sees that when it runs next, so
 * resuming makes it run in the next turn of the loop.
 */
#include "api/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/again.h"
#include "api/api.h"
#include "api/auth.h"
#include "api/guard.h"
#include "api/page.h"
#include "api/patience.h"
#include "api/request.h"
#include "api/router.h"
#include "api/routes.h"
#include "api/stream.h"
#include "daemon/base/clock.h"
#include "daemon/base/log.h"

#define CONNECTIONS 256
#define CONNECTIONS_OF_ONE 128                     /* address */
#define CONNECTION_MEMORY_BYTES ((size_t)32 << 10) /* request line and headers */
#define PARAMETERS 64                              /* of a query */
#define IDLE_TIMEOUT_S 60
#define TLS_VERSIONS "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"
#define WRONG_TOKEN_COST 20            /* requests */
#define LAST_TURNS 100                 /* of MHD when the server closes */
#define DRAIN_BYTES ((size_t)64 << 20) /* of a body that is too big, before we hang up */

static void run(struct api *api)
{
    api->resumed = false;
    MHD_run(api->daemon);
    MHD_UNSIGNED_LONG_LONG timeout_ms;
    if (api->resumed)
        uv_timer_start(&api->timer, api->on_timer, 0, 0);
    else if (MHD_get_timeout(api->daemon, &timeout_ms) == MHD_YES)
        uv_timer_start(&api->timer, api->on_timer, timeout_ms, 0);
    else
        uv_timer_stop(&api->timer);
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
    (void)status, (void)events;
    run(poll->data);
}

static void on_timer(uv_timer_t *timer)
{
    run(timer->data);
}

void server_resume(struct api *api, struct MHD_Connection *connection)
{
    MHD_resume_connection(connection);
    api->resumed = true;
    uv_timer_start(&api->timer, api->on_timer, 0, 0);
}

/* ---- One request ---- */

static const struct sockaddr *peer(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return info ? info->client_addr : NULL;
}

/* A GET whose answer the client has already. */
static bool not_modified(struct request *r, const char *etag)
{
    const char *list = request_get_header(r, "If-None-Match");
    return list && request_etag_listed(list, etag, true);
}

static void add_etag(struct request *r)
{
    char etag[REQUEST_ETAG_BYTES];
    request_etag(r->reply, r->reply_bytes, etag);
    request_header(r, "ETag", "%s", etag);
    if (not_modified(r, etag)) {
        r->status = 304;
        r->reply_bytes = 0;
        r->reply_type = NULL;
    }
}

static enum MHD_Result send_reply(struct request *r)
{
    struct MHD_Response *response = r->response;
    r->response = NULL;
    if (r->status == 401)
        rate_charge(&r->api->rate, peer(r->connection), clock_s(), WRONG_TOKEN_COST);
    if (!response) {
        bool resource = r->status == 200 && r->route && r->route->reply &&
                        strcmp(r->method, "GET") == 0 && r->reply;
        if (resource)
            add_etag(r);
        response = MHD_create_response_from_buffer(r->reply_bytes, r->reply, MHD_RESPMEM_MUST_FREE);
        if (!response)
            return MHD_NO;
        r->reply = NULL;
        if (r->reply_type)
            MHD_add_response_header(response, "Content-Type", r->reply_type);
        MHD_add_response_header(response, "Cache-Control", resource ? "no-cache" : "no-store");
    }
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    for (int i = 0; i < REQUEST_HEADERS; i++)
        if (r->headers[i].value)
            MHD_add_response_header(response, r->headers[i].name, r->headers[i].value);
    enum MHD_Result queued = MHD_queue_response(r->connection, (unsigned)r->status, response);
    MHD_destroy_response(response);
    return queued;
}

static bool collect(struct request *r, const char *data, size_t bytes)
{
    r->body_seen += bytes;
    if (r->body_too_big || r->body_seen > REQUEST_BODY_BYTES) {
        r->body_too_big = true;
        return r->body_seen <= DRAIN_BYTES;
    }
    if (r->body_bytes + bytes + 1 > r->body_capacity) {
        size_t capacity = r->body_capacity ? r->body_capacity * 2 : 4096;
        while (capacity < r->body_bytes + bytes + 1)
            capacity *= 2;
        char *body = realloc(r->body, capacity);
        if (!body)
            return false;
        r->body = body;
        r->body_capacity = capacity;
    }
    memcpy(r->body + r->body_bytes, data, bytes);
    r->body_bytes += bytes;
    r->body[r->body_bytes] = '\0';
    return true;
}

static void reply_too_big(struct request *r)
{
    request_reply_problem(r, 413, "too-large", NULL, "The body is larger than %zu bytes.",
                          REQUEST_BODY_BYTES);
}

/* ---- The request line ---- */

/* Before MHD takes the request line apart. A query of more parameters than fit into a connection's
 * memory would never be answered: MHD gives up and forgets that it did. So a long one is cut off
 * here, in the connection's own buffer, and the request refused. */
static void *on_uri(void *cls, const char *uri, struct MHD_Connection *connection)
{
    struct api *api = cls;
    struct request *r = calloc(1, sizeof *r);
    char *query = uri ? strchr(uri, '?') : NULL;
    int parameters = 1;
    for (const char *p = query; p && (p = strchr(p + 1, '&'));)
        parameters++;
    if (r) {
        r->api = api;
        r->async = api->async;
        r->control = api->control;
        r->connection = connection;
        r->method = "";
        r->uri_end = uri ? uri + strlen(uri) : NULL;
        if (parameters > PARAMETERS)
            r->uri_status = 414;
        else if (uri && strstr(uri, "%00"))
            r->uri_status = 400;
    }
    if (parameters > PARAMETERS)
        query[1] = '\0';
    return r;
}

/* `version` stands behind the URI in the same line, so a NUL between them was in the URI. */
static bool refuse_uri(struct request *r, const char *version)
{
    if (r->uri_status == 414)
        request_reply_problem(r, 414, "uri-too-long", NULL,
                              "The query has more than %d parameters.", PARAMETERS);
    else if (r->uri_status || (*version && r->uri_end && version != r->uri_end + 1))
        request_reply_problem(r, 400, "malformed-uri", NULL,
                              "The URI holds the character NUL, which is a part of nothing here.");
    return r->status != 0;
}

/* ---- What is refused before the body ---- */

/* Whom nothing is told, not even what there is. False: answered. */
static bool admit(struct request *r)
{
    struct api *api = r->api;
    double wait_s;
    const char *host = request_get_header(r, "Host");
    if (!rate_take(&api->rate, peer(r->connection), clock_s(), &wait_s)) {
        request_reply_problem(r, 429, "too-many-requests", NULL,
                              "More than %g requests a second come from your address.",
                              api->rate.per_s);
        request_header(r, "Retry-After", "%d", (int)wait_s + 1);
    } else if (!api->auth_required &&
               !guard_host_known(host, (const char *const *)api->hosts, api->host_count)) {
        request_reply_problem(r, 403, "unknown-host", NULL,
                              "Without tokens this answers to addresses in numbers, to localhost "
                              "and to the names in \"hosts\" of the settings, not to %.200s.",
                              host);
    } else if (!guard_same_origin(request_get_header(r, "Origin"), api->scheme, host)) {
        request_reply_problem(r, 403, "foreign-origin", NULL,
                              "Requests that a page of another site makes are refused.");
    }
    return !r->status;
}

/* False: answered. */
static bool find_route(struct request *r, const char *method, const char *path)
{
    struct router_match match;
    router_find(routes, routes_count, method, path, &match);
    if (!match.path_known)
        page_find(method, path, &match);
    r->route = match.route;
    r->id = match.id;
    if (match.route) {
        r->method = match.route->method;
    } else if (match.path_known) {
        request_reply_problem(r, 405, "method-not-allowed", NULL,
                              "%.16s is no method of %.200s; it takes %s.", method, path,
                              match.allow);
        request_header(r, "Allow", "%s", match.allow);
    } else {
        request_reply_problem(r, 404, "not-found", NULL, "There is nothing at %.200s.", path);
    }
    return match.route != NULL;
}

/* What changes something may be asked to do so only while the resource has this ETag. */
static void read_if_match(struct request *r)
{
    const char *list = request_get_header(r, "If-Match");
    if (!list || strcmp(list, "*") == 0 || strcmp(r->method, "GET") == 0)
        return;
    if (!r->route->match)
        request_reply_problem(r, 412, "precondition-failed", NULL,
                              "%s %s goes by no ETag: send no If-Match.", r->method,
                              r->route->pattern);
    else if (!(r->if_match = strdup(list)))
        request_reply_err(r, err_no_memory());
}

struct framing {
    int lengths, encodings;
    bool chunked;
};

static enum MHD_Result on_header(void *cls, enum MHD_ValueKind kind, const char *key,
                                 const char *value)
{
    (void)kind;
    struct framing *f = cls;
    if (strcasecmp(key, "Content-Length") == 0)
        f->lengths++;
    if (strcasecmp(key, "Transfer-Encoding") == 0) {
        f->encodings++;
        f->chunked = value && strcasecmp(value, "chunked") == 0;
    }
    return MHD_YES;
}

/* Where a body ends must be said once: a proxy before us may read two answers otherwise than we do,
 * and take a part of one request for another (RFC 9112, 6.3). False: answered. */
static bool check_framing(struct request *r)
{
    struct framing f = {0};
    MHD_get_connection_values(r->connection, MHD_HEADER_KIND, on_header, &f);
    if (f.lengths + f.encodings <= 1 && (f.encodings == 0 || f.chunked))
        return true;
    request_reply_problem(r, 400, "malformed-request", NULL,
                          "The length of the body must be told by one Content-Length or by "
                          "Transfer-Encoding: chunked.");
    request_header(r, "Connection", "close");
    return false;
}

/* A body that says that it is too big is read all the same, within reason: a client that is busy
 * sending looks for no answer, and finds a broken connection. */
static void check_length(struct request *r)
{
    const char *text = request_get_header(r, "Content-Length");
    unsigned long long length = text ? strtoull(text, NULL, 10) : 0;
    if (length <= REQUEST_BODY_BYTES)
        return;
    r->body_too_big = true;
    if (length > DRAIN_BYTES || request_get_header(r, "Expect"))
        reply_too_big(r);
}

/* Answers at once what can be refused before the body came. */
static void begin(struct request *r, const char *method, const char *path, const char *version)
{
    if (!check_framing(r) || !admit(r) || refuse_uri(r, version) || !find_route(r, method, path))
        return;
    auth_begin(r);
    if (!r->status)
        check_length(r);
    if (!r->status)
        read_if_match(r);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *connection, const char *url,
                                  const char *method, const char *version, const char *data,
                                  size_t *data_bytes, void **request)
{
    struct api *api = cls;
    struct request *r = *request;
    if (!r) /* memory was short */
        return MHD_NO;
    if (!r->begun) {
        r->begun = true;
        api->requests_total++;
        patience_header(connection);
        begin(r, method, url, version);
        return r->status ? send_reply(r) : MHD_YES;
    }
    if (*data_bytes) {
        bool good = collect(r, data, *data_bytes);
        *data_bytes = 0;
        return good ? MHD_YES : MHD_NO;
    }
    if (!r->called) {
        r->called = true;
        patience_whole(connection);
        if (r->body_too_big)
            reply_too_big(r);
        else if (api->stopping)
            request_reply_problem(r, 503, "stopping", NULL, "The daemon is shutting down.");
        else if (again_begin(r))
            auth_then_handle(r);
    }
    if (r->suspended)
        return MHD_YES;
    if (!r->status && !r->response)
        request_reply_problem(r, 500, "internal", NULL, "The request was not answered.");
    return send_reply(r);
}

static void on_completed(void *cls, struct MHD_Connection *connection, void **request,
                         enum MHD_RequestTerminationCode why)
{
    (void)cls, (void)why;
    struct request *r = *request;
    patience_over(connection);
    if (!r)
        return;
    if (r->response)
        MHD_destroy_response(r->response);
    request_free(r);
    *request = NULL;
}

static void on_log(void *cls, const char *format, va_list args)
{
    (void)cls;
    char line[512];
    vsnprintf(line, sizeof line, format, args);
    log_debug("http: %s", line);
}

/* ---- Life ---- */

static struct err *parse_address(const struct api_options *options, struct sockaddr_storage *out)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)out;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
    memset(out, 0, sizeof *out);
    if (inet_pton(AF_INET, options->address, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons((uint16_t)options->port);
        return NULL;
    }
    if (inet_pton(AF_INET6, options->address, &v6->sin6_addr) == 1) {
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons((uint16_t)options->port);
        return NULL;
    }
    return err_new(ERR_INVALID, "listen: \"%s\" is not an IPv4 or IPv6 address", options->address);
}

static struct err *listen_on(struct api *api, const struct api_options *options, int *out)
{
    struct sockaddr_storage address;
    TRY(parse_address(options, &address));
    bool v6 = address.ss_family == AF_INET6;
    socklen_t size = v6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1;
    if (fd < 0)
        return err_errno(errno, "cannot make a socket");
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, size) != 0 || listen(fd, 128) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
        struct err *err =
            err_errno(errno, "cannot listen on %s port %d", options->address, options->port);
        close(fd);
        return err;
    }
    int port = ntohs(v6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                        : ((struct sockaddr_in *)&address)->sin_port);
    snprintf(api->url, sizeof api->url, v6 ? "%s://[%s]:%d" : "%s://%s:%d", api->scheme,
             options->address, port);
    *out = fd;
    return NULL;
}

static struct err *keep_options(struct api *api, const struct api_options *options)
{
    bool open_to_others = !guard_loopback(options->address) && !options->insecure;
    if (open_to_others && !options->tls_certificate)
        return err_new(ERR_INVALID,
                       "listen_address: %s can be reached by others, which needs tls_certificate "
                       "and tls_key, or \"insecure\": true",
                       options->address);
    api->auth_required = options->auth || open_to_others;
    api->scheme = options->tls_certificate ? "https" : "http";
    api->rate.per_s = options->requests_per_s;
    api->backups = strdup(options->backups_directory);
    api->hosts = calloc(options->host_count + 1, sizeof *api->hosts);
    if (!api->backups || !api->hosts)
        return err_no_memory();
    for (size_t i = 0; i < options->host_count; i++)
        if (!(api->hosts[api->host_count++] = strdup(options->hosts[i])))
            return err_no_memory();
    return NULL;
}

static void free_api(struct api *api)
{
    for (size_t i = 0; i < api->host_count; i++)
        free(api->hosts[i]);
    free(api->hosts);
    free(api->backups);
    free(api);
}

static struct err *start_http(struct api *api, int fd)
{
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG;
    api->daemon = MHD_start_daemon(
        flags | (api->tls ? (unsigned)MHD_USE_TLS : 0), 0, NULL, NULL, on_request, api,
        MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_URI_LOG_CALLBACK, on_uri, api,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, (unsigned)CONNECTIONS_OF_ONE,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_MEMORY_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)IDLE_TIMEOUT_S, MHD_OPTION_NOTIFY_COMPLETED, on_completed, NULL,
        MHD_OPTION_NOTIFY_CONNECTION, patience_connection, &api->patience,
        MHD_OPTION_STRICT_FOR_CLIENT, 1,
        api->tls ? MHD_OPTION_HTTPS_CERT_CALLBACK2 : MHD_OPTION_END, tls_retrieve,
        MHD_OPTION_HTTPS_PRIORITIES, TLS_VERSIONS, MHD_OPTION_END);
    return api->daemon ? NULL : err_new(ERR_INTERNAL, "the HTTP server cannot be started");
}

struct err *api_open(uv_loop_t *loop, struct async *async, const struct api_control *control,
                     const struct api_options *options, struct api **out)
{
    struct api *api = calloc(1, sizeof *api);
    int fd = -1;
    if (!api)
        return err_no_memory();
    api->loop = loop;
    api->async = async;
    api->control = control;
    api->on_timer = on_timer;
    struct err *err = keep_options(api, options);
    if (!err)
        err = listen_on(api, options, &fd);
    if (!err && options->tls_certificate)
        err = tls_open(loop, async, options->tls_certificate, options->tls_key, &api->tls);
    if (!err)
        err = start_http(api, fd);
    if (err) {
        if (fd >= 0)
            close(fd);
        goto failed;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(api->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    int rc = info ? uv_poll_init(loop, &api->poll, info->epoll_fd) : UV_ENOTSUP;
    if (rc != 0) {
        MHD_stop_daemon(api->daemon);
        err = err_new(ERR_INTERNAL, "the HTTP server cannot be polled: %s", uv_strerror(rc));
        goto failed;
    }
    uv_timer_init(loop, &api->timer);
    uv_timer_init(loop, &api->heartbeat);
    api->poll.data = api->timer.data = api->heartbeat.data = api;
    patience_open(&api->patience, loop);
    uv_poll_start(&api->poll, UV_READABLE, on_ready);
    stream_heartbeat_start(api);
    *out = api;
    return NULL;
failed:
    tls_close(api->tls);
    free_api(api);
    return err;
}

void api_reload(struct api *api)
{
    if (api && !api->stopping)
        tls_reload(api->tls);
}

struct err *api_check_tls(const char *certificate, const char *key)
{
    return tls_check(certificate, key);
}

bool api_is_loopback(const char *address)
{
    return guard_loopback(address);
}

const char *api_url(const struct api *api)
{
    return api->url;
}

void api_committed(struct api *api)
{
    stream_wake(api);
}

void api_stop(struct api *api)
{
    if (!api || api->stopping)
        return;
    api->stopping = true;
    int fd = MHD_quiesce_daemon(api->daemon);
    if (fd >= 0)
        close(fd);
    tls_stop(api->tls);
    stream_end(api);
    run(api);
}

static void count_closed(struct api *api)
{
    if (++api->closed == 4)
        free_api(api);
}

static void on_closed(uv_handle_t *handle)
{
    count_closed(handle->data);
}

static void on_patience_closed(uv_handle_t *handle)
{
    count_closed((struct api *)((char *)handle->data - offsetof(struct api, patience)));
}

void api_close(struct api *api)
{
    if (!api)
        return;
    api_stop(api);
    MHD_UNSIGNED_LONG_LONG timeout_ms = 0;
    for (int i = 0; i < LAST_TURNS && timeout_ms == 0; i++) { /* what was resumed last is sent */
        MHD_run(api->daemon);
        if (MHD_get_timeout(api->daemon, &timeout_ms) != MHD_YES)
            break;
    }
    uv_poll_stop(&api->poll);
    uv_timer_stop(&api->timer);
    MHD_stop_daemon(api->daemon);
    tls_close(api->tls);
    uv_close((uv_handle_t *)&api->poll, on_closed);
    uv_close((uv_handle_t *)&api->timer, on_closed);
    uv_close((uv_handle_t *)&api->heartbeat, on_closed);
    patience_close(&api->patience, on_patience_closed);
}
