#include "api/inputs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/doc.h"
#include "daemon/base/file.h"
#include "daemon/base/source_kind.h"
#include "daemon/base/utf8.h"

#define CONFIG_BYTES ((size_t)1 << 20)
#define PEEK_BYTES ((size_t)64 << 10) /* of each data file, to see whether it is text */
#define PEEK_FILES 16                 /* of a directory; the preparation reads all of them */

/* ---- Roots ---- */

static void list_roots(const struct api_control *control, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < control->root_count && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", control->roots[i]);
}

static bool check_roots(const struct api_control *control, const char *pointer,
                        const char *resolved, struct problems *problems)
{
    char roots[1024];
    for (size_t i = 0; i < control->root_count; i++)
        if (file_is_under(resolved, control->roots[i]))
            return true;
    list_roots(control, roots, sizeof roots);
    problems_add(problems, pointer,
                 "%s lies outside of the directories that this daemon reads from: %s", resolved,
                 roots);
    return false;
}

char *inputs_resolve(const struct api_control *control, const char *pointer, const char *path,
                     struct problems *problems)
{
    char roots[1024], resolved[PATH_MAX];
    bool found = false;
    int why = ENOENT;
    if (path[0] == '/') {
        found = realpath(path, resolved) != NULL;
        why = errno;
    }
    for (size_t i = 0; path[0] != '/' && !found && i < control->root_count; i++) {
        char *joined = NULL;
        if (asprintf(&joined, "%s/%s", control->roots[i], path) < 0) {
            problems_add_err(problems, pointer, err_no_memory());
            return NULL;
        }
        found = realpath(joined, resolved) != NULL;
        if (!found && errno != ENOENT)
            why = errno;
        free(joined);
    }
    list_roots(control, roots, sizeof roots);
    if (!found) {
        if (why == ENOENT || why == ENOTDIR)
            problems_add(problems, pointer, "there is no file or directory %s%s%s", path,
                         path[0] == '/' ? "" : " under the roots ", path[0] == '/' ? "" : roots);
        else
            problems_add(problems, pointer, "%s cannot be reached: %s", path, strerror(why));
        return NULL;
    }
    if (!check_roots(control, pointer, resolved, problems))
        return NULL;
    char *copy = strdup(resolved);
    if (!copy)
        problems_add_err(problems, pointer, err_no_memory());
    return copy;
}

bool inputs_allowed(const struct api_control *control, const char *pointer, const char *path,
                    struct problems *problems)
{
    char resolved[PATH_MAX];
    return !realpath(path, resolved) || check_roots(control, pointer, resolved, problems);
}

/* ---- Models ---- */

static char *join(const char *directory, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

cJSON *inputs_model_config(const struct api_control *control, const char *pointer,
                           const char *directory, struct problems *problems)
{
    cJSON *json = NULL;
    char *text = NULL, *path = join(directory, "config.json");
    size_t bytes;
    if (path && !inputs_allowed(control, pointer, path, problems)) {
        free(path);
        return NULL;
    }
    struct err *err = path ? file_read(path, CONFIG_BYTES, &text, &bytes) : err_no_memory();
    if (!err)
        err = doc_read_object(text, bytes, path, &json);
    if (err && err_kind(err) == ERR_NOT_FOUND) {
        problems_add(problems, pointer, "%s has no config.json of a Hugging Face model", directory);
        err_free(err);
    } else if (err) {
        problems_add_err(problems, pointer, err);
    }
    free(text);
    free(path);
    return json;
}

/* ---- Data ---- */

/* The first part of a file is UTF-8 without NUL. A sequence that the cut broke is no fault. */
static bool looks_like_text(const char *text, size_t bytes, bool cut, size_t *at)
{
    const char *nul = memchr(text, '\0', bytes);
    *at = nul ? (size_t)(nul - text) : utf8_check(text, bytes);
    return *at == bytes || (!nul && cut && bytes - *at < 4);
}

static void check_file(const char *pointer, const char *path, struct problems *problems)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        problems_add(problems, pointer, "%s cannot be read: %s", path, strerror(errno));
        return;
    }
    struct stat st;
    char *text = malloc(PEEK_BYTES);
    ssize_t n = text ? read(fd, text, PEEK_BYTES) : -1;
    size_t at;
    if (!text)
        problems_add_err(problems, pointer, err_no_memory());
    else if (n < 0 || fstat(fd, &st) != 0)
        problems_add(problems, pointer, "%s cannot be read: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        problems_add(problems, pointer, "%s is not a regular file", path);
    else if (n == 0)
        problems_add(problems, pointer, "%s is empty", path);
    else if (!looks_like_text(text, (size_t)n, n < st.st_size, &at))
        problems_add(problems, pointer, "%s is not text: byte %zu is no UTF-8", path, at);
    free(text);
    close(fd);
}

/* A link must not lead out of its directory, nor out of the roots. False: a problem. */
static bool check_link(const struct api_control *control, const char *pointer,
                       const char *directory, const char *file, struct problems *problems)
{
    char resolved[PATH_MAX];
    if (!inputs_allowed(control, pointer, file, problems))
        return false;
    if (!realpath(file, resolved) || file_is_under(resolved, directory))
        return true;
    problems_add(problems, pointer, "%s leads out of its directory", file);
    return false;
}

/* Of an entry of a directory: whether the preparation will read it. */
static bool is_source(const char *name, const char *file, struct stat *st, const char *pointer,
                      struct problems *problems)
{
    enum source_kind kind;
    if (!source_kind_of(name, &kind))
        return false;
    if (stat(file, st) == 0)
        return S_ISREG(st->st_mode);
    problems_add(problems, pointer, "%s cannot be read: %s", file, strerror(errno));
    return false;
}

static void check_directory(const struct api_control *control, const char *pointer,
                            const char *path, struct problems *problems)
{
    DIR *dir = opendir(path);
    if (!dir) {
        problems_add(problems, pointer, "%s cannot be read: %s", path, strerror(errno));
        return;
    }
    int files = 0;
    size_t before = problems_count(problems);
    for (struct dirent *entry; problems_count(problems) == before && (entry = readdir(dir));) {
        struct stat st;
        char *file = join(path, entry->d_name);
        if (!file)
            problems_add_err(problems, pointer, err_no_memory());
        else if (is_source(entry->d_name, file, &st, pointer, problems) &&
                 (entry->d_type == DT_REG || check_link(control, pointer, path, file, problems)) &&
                 st.st_size > 0 && ++files <= PEEK_FILES)
            check_file(pointer, file, problems);
        free(file);
    }
    closedir(dir);
    if (problems_count(problems) == before && files == 0)
        problems_add(problems, pointer, "%s has no .jsonl, .ndjson or .txt file that is not empty",
                     path);
}

void inputs_check_data(const struct api_control *control, const char *pointer, const char *path,
                       struct problems *problems)
{
    struct stat st;
    enum source_kind kind;
    if (stat(path, &st) != 0)
        problems_add(problems, pointer, "%s cannot be read: %s", path, strerror(errno));
    else if (S_ISDIR(st.st_mode))
        check_directory(control, pointer, path, problems);
    else if (!source_kind_of(source_name(path), &kind))
        problems_add(problems, pointer,
                     "%s must be a .jsonl, .ndjson or .txt file, or a directory of them", path);
    else
        check_file(pointer, path, problems);
}
