#include "daemon/base/source_kind.h"

#include <stddef.h>
#include <string.h>

bool source_kind_of(const char *name, enum source_kind *kind)
{
    static const struct {
        const char *ending;
        enum source_kind kind;
    } endings[] = {{".jsonl", SOURCE_JSONL}, {".ndjson", SOURCE_JSONL}, {".txt", SOURCE_TEXT}};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t m = strlen(endings[i].ending);
        if (n > m && name[0] != '.' && strcmp(name + n - m, endings[i].ending) == 0) {
            *kind = endings[i].kind;
            return true;
        }
    }
    return false;
}

const char *source_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}
