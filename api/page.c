/* GET / and the assets of the dashboard.
 *
 * The page may do nothing but what it needs: its own script and style, requests to this daemon, no
 * frame around it. Everything inline is forbidden, so that a text that got into the page unescaped
 * would still not run.
 */
#include "api/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "api/request.h"
#include "api/routes.h"
#include "web/page.h"

#define POLICY                                                                                     \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "        \
    "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

static const struct route asset = {.method = "GET", .handler = route_index, .status = 200};

void page_find(const char *method, const char *path, struct router_match *out)
{
    for (size_t i = 1; i < page_files_count; i++) {
        if (strcmp(page_files[i].path, path) != 0)
            continue;
        out->path_known = true;
        out->id = (int64_t)i;
        if (strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0)
            out->route = &asset;
        else
            snprintf(out->allow, sizeof out->allow, "GET, HEAD");
        return;
    }
}

/* "q=0", "q=0.0", …: not at all. */
static bool refused(const char *parameters, size_t n)
{
    const char *end = parameters + n;
    const char *q = memchr(parameters, '=', n);
    return q && q > parameters && (q[-1] == 'q' || q[-1] == 'Q') &&
           q + 1 + strspn(q + 1, "0. ") >= end;
}

bool page_takes_gzip(const char *accept_encoding)
{
    bool any = false;
    for (const char *p = accept_encoding; p && *p;) {
        p += strspn(p, " \t,");
        size_t all = strcspn(p, ","), name = strcspn(p, " \t;,");
        bool taken = !refused(p + name, all - name);
        if (name == 4 && strncasecmp(p, "gzip", 4) == 0)
            return taken;
        if (name == 1 && *p == '*')
            any = taken;
        p += all;
    }
    return any;
}

static void add_headers(struct MHD_Response *response)
{
    MHD_add_response_header(response, "Content-Security-Policy", POLICY);
    MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(response, "Cross-Origin-Opener-Policy", "same-origin");
}

static void reply_file(struct request *r, const struct page_file *file)
{
    bool gzip = page_takes_gzip(request_get_header(r, "Accept-Encoding"));
    const char *known = request_get_header(r, "If-None-Match");
    char etag[REQUEST_ETAG_BYTES + 8];
    snprintf(etag, sizeof etag, "\"%.32s%s\"", file->hash, gzip ? "-gzip" : "");
    r->status = known && request_etag_listed(known, etag, true) ? 304 : 200;
    size_t bytes = gzip ? file->gzip_bytes : file->plain_bytes;
    r->response = MHD_create_response_from_buffer(r->status == 304 ? 0 : bytes,
                                                  (void *)(gzip ? file->gzip : file->plain),
                                                  MHD_RESPMEM_PERSISTENT);
    if (!r->response) {
        request_reply_err(r, err_no_memory());
        return;
    }
    add_headers(r->response);
    MHD_add_response_header(r->response, "ETag", etag);
    MHD_add_response_header(r->response, "Vary", "Accept-Encoding");
    MHD_add_response_header(r->response, "Cache-Control",
                            file == page_files ? "no-cache" : "max-age=31536000, immutable");
    if (r->status == 304)
        return;
    MHD_add_response_header(r->response, "Content-Type", file->type);
    if (gzip)
        MHD_add_response_header(r->response, "Content-Encoding", "gzip");
}

/* In the place of the dashboard. */
static void reply_absence(struct request *r)
{
    static const char page[] =
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>dllmd</title>\n"
        "<h1>dllmd " DLLMD_VERSION "</h1>\n"
        "<p>A training service for diffusion language models. This build has no dashboard; the "
        "API is here:</p>\n<ul>\n"
        "<li><a href=\"/v1/jobs\">/v1/jobs</a>: jobs; POST a spec to submit one\n"
        "<li><a href=\"/v1/tasks\">/v1/tasks</a>, <a href=\"/v1/datasets\">/v1/datasets</a>: "
        "preparation and what it made\n"
        "<li><a href=\"/v1/nodes\">/v1/nodes</a>: machines and their slots\n"
        "<li><a href=\"/openapi.json\">/openapi.json</a>: all of it, described\n"
        "<li><a href=\"/healthz\">/healthz</a>, <a href=\"/readyz\">/readyz</a>, "
        "<a href=\"/metrics\">/metrics</a>: health and Prometheus\n</ul>\n";
    request_reply_text(r, 200, "text/html; charset=utf-8", strdup(page));
    request_header(r, "Content-Security-Policy", "%s", POLICY);
    request_header(r, "Referrer-Policy", "no-referrer");
}

/* "/" has no id, and is the first of the files. */
void route_index(struct request *r)
{
    if (page_files_count)
        reply_file(r, &page_files[r->id]);
    else
        reply_absence(r);
}
