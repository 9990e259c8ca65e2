/* Which files hold training data: by their names, the same for who checks a path and who reads it.
 */
#ifndef BASE_SOURCE_KIND_H
#define BASE_SOURCE_KIND_H

#include <stdbool.h>

enum source_kind {
    SOURCE_JSONL, /* .jsonl, .ndjson: a record a line */
    SOURCE_TEXT,  /* .txt: one document */
};

/* Of a file's name, directories left out; false: none. Names that begin with a dot hide. */
bool source_kind_of(const char *name, enum source_kind *kind);
/* The part of a path behind its last slash. */
const char *source_name(const char *path);

#endif
