/* The dashboard as dllmd carries it: the files that web/bundle.mjs made, or none where the build
 * left it out. */
#ifndef WEB_PAGE_H
#define WEB_PAGE_H

#include <stddef.h>

struct page_file {
    const char *path; /* "/" or "/assets/…" */
    const char *type; /* media type */
    const char *hash; /* of the content, in hex */
    const unsigned char *plain, *gzip;
    size_t plain_bytes, gzip_bytes;
};

/* The first is "/". The name of an asset holds a hash of its content: it never changes. */
extern const struct page_file page_files[];
extern const size_t page_files_count; /* 0: this build has no dashboard */

#endif
