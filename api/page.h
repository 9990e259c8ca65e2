/* Serves the dashboard that is compiled in (web/page.h). */
#ifndef API_PAGE_H
#define API_PAGE_H

#include <stdbool.h>

#include "api/router.h"

/* The route of an asset of the page, as router_find() does it; leaves `out` alone if `path` is
 * none. Its id is the asset's place in page_files. Assets are no part of the API: openapi.json
 * does not have them. */
void page_find(const char *method, const char *path, struct router_match *out);

/* An Accept-Encoding takes gzip; NULL: there is none. */
bool page_takes_gzip(const char *accept_encoding);

#endif
