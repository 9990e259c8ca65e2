#include "daemon/worker/data/sources.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/utf8.h"

#define READ_BYTES ((size_t)1 << 20)
#define BYTE_ORDER_MARK "\xef\xbb\xbf"

/* ---- Finding ---- */

/* Takes ownership of `path`. */
static struct err *add(struct sources *s, char *path, enum source_kind kind, int64_t bytes)
{
    struct source *items = realloc(s->items, (s->count + 1) * sizeof *items);
    if (!items) {
        free(path);
        return err_no_memory();
    }
    s->items = items;
    s->items[s->count++] = (struct source){.path = path, .kind = kind, .bytes = bytes};
    s->bytes += bytes;
    return NULL;
}

static struct err *check_link(const char *root, const char *path)
{
    char *real = realpath(path, NULL);
    if (!real)
        return err_errno(errno, "%s", path);
    size_t n = strlen(root);
    bool inside = strncmp(real, root, n) == 0 && (real[n] == '/' || root[n - 1] == '/');
    free(real);
    if (!inside)
        return err_new(ERR_INVALID,
                       "%s leads out of its directory: the file that it stands for must be there "
                       "itself",
                       path);
    return NULL;
}

static struct err *add_entry(struct sources *s, const char *directory, const char *root,
                             const char *name)
{
    enum source_kind kind;
    struct stat st;
    char *path;
    if (!source_kind_of(name, &kind))
        return NULL;
    if (asprintf(&path, "%s/%s", directory, name) < 0)
        return err_no_memory();
    struct err *e = NULL;
    if (stat(path, &st) != 0)
        e = err_errno(errno, "%s", path);
    else if (S_ISREG(st.st_mode) && !(e = check_link(root, path)))
        return add(s, path, kind, st.st_size);
    free(path);
    return e;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const struct source *)a)->path, ((const struct source *)b)->path);
}

static struct err *find_in(struct sources *s, const char *directory)
{
    char *root = realpath(directory, NULL);
    DIR *dir = root ? opendir(directory) : NULL;
    struct err *e = NULL;
    if (!dir)
        e = err_errno(errno, "%s", directory);
    while (!e) {
        errno = 0;
        struct dirent *entry = readdir(dir);
        if (!entry) {
            if (errno)
                e = err_errno(errno, "%s", directory);
            break;
        }
        e = add_entry(s, directory, root, entry->d_name);
    }
    if (dir)
        closedir(dir);
    free(root);
    if (!e && s->count == 0)
        e = err_new(ERR_INVALID, "%s holds no file whose name ends in .jsonl, .ndjson or .txt",
                    directory);
    if (!e)
        qsort(s->items, s->count, sizeof *s->items, by_path);
    return e;
}

static struct err *find(struct sources *s, const char *path)
{
    struct stat st;
    enum source_kind kind;
    if (stat(path, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? err_new(ERR_NOT_FOUND, "%s does not exist", path)
                   : err_errno(errno, "%s", path);
    if (S_ISDIR(st.st_mode))
        return find_in(s, path);
    if (!S_ISREG(st.st_mode))
        return err_new(ERR_INVALID, "%s is neither a file nor a directory", path);
    if (!source_kind_of(source_name(path), &kind))
        return err_new(ERR_INVALID,
                       "%s must have a name that ends in .jsonl, .ndjson (a record a line) or "
                       ".txt (one document)",
                       path);
    char *copy = strdup(path);
    return copy ? add(s, copy, kind, st.st_size) : err_no_memory();
}

struct err *sources_find(const char *path, struct sources *out)
{
    *out = (struct sources){0};
    struct err *e = find(out, path);
    if (e)
        sources_free(out);
    return e;
}

void sources_free(struct sources *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->items[i].path);
    free(s->items);
    *s = (struct sources){0};
}

/* ---- Reading ---- */

struct source_reader {
    const char *path;
    int fd;
    source_tick *tick;
    void *user;
    XXH3_state_t *hash;
    char *buffer;
    size_t capacity, begin, end; /* what is read and not yet handed out: [begin, end) */
    bool at_end;                 /* nothing more to read */
    bool started;
    int64_t line;   /* lines handed out, or ended by text handed out */
    int64_t column; /* bytes handed out since the last line end: text only */
};

struct err *source_reader_open(const struct source *source, source_tick *tick, void *user,
                               struct source_reader **out)
{
    *out = NULL;
    struct source_reader *r = calloc(1, sizeof *r);
    if (!r)
        return err_no_memory();
    *r = (struct source_reader){
        .path = source->path, .fd = -1, .tick = tick, .user = user, .capacity = 2 * READ_BYTES};
    r->buffer = malloc(r->capacity);
    r->hash = XXH3_createState();
    struct err *e = NULL;
    if (!r->buffer || !r->hash)
        e = err_no_memory();
    else if ((r->fd = open(source->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)) < 0)
        e = err_errno(errno, "%s", source->path);
    if (e) {
        source_reader_close(r);
        return e;
    }
    XXH3_128bits_reset(r->hash);
    posix_fadvise(r->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    *out = r;
    return NULL;
}

void source_reader_close(struct source_reader *r)
{
    if (!r)
        return;
    if (r->fd >= 0)
        close(r->fd);
    XXH3_freeState(r->hash);
    free(r->buffer);
    free(r);
}

/* Room for READ_BYTES behind `end`: by moving what is left to the front, else by growing. */
static struct err *make_room(struct source_reader *r)
{
    if (r->capacity - r->end >= READ_BYTES)
        return NULL;
    memmove(r->buffer, r->buffer + r->begin, r->end - r->begin);
    r->end -= r->begin;
    r->begin = 0;
    if (r->capacity - r->end >= READ_BYTES)
        return NULL;
    char *buffer = realloc(r->buffer, 2 * r->capacity);
    if (!buffer)
        return err_no_memory();
    r->buffer = buffer;
    r->capacity *= 2;
    return NULL;
}

/* Reads on; sets at_end where there is nothing more. */
static struct err *fill(struct source_reader *r)
{
    TRY(make_room(r));
    ssize_t n;
    do
        n = read(r->fd, r->buffer + r->end, READ_BYTES);
    while (n < 0 && errno == EINTR);
    if (n < 0)
        return err_errno(errno, "%s", r->path);
    if (n == 0) {
        r->at_end = true;
        return NULL;
    }
    XXH3_128bits_update(r->hash, r->buffer + r->end, (size_t)n);
    r->end += (size_t)n;
    return r->tick(r->user, (size_t)n);
}

struct err *source_reader_line(struct source_reader *r, size_t max_bytes, char **line,
                               size_t *bytes)
{
    size_t searched = 0;
    *line = NULL;
    for (;;) {
        char *start = r->buffer + r->begin;
        size_t n = r->end - r->begin;
        char *end = n > searched ? memchr(start + searched, '\n', n - searched) : NULL;
        size_t length = end ? (size_t)(end - start) : n;
        if (length > max_bytes)
            return err_new(ERR_INVALID,
                           "%s: line %" PRId64 " is longer than the %zu bytes that a record may "
                           "have",
                           r->path, r->line + 1, max_bytes);
        if (end || (r->at_end && n > 0)) {
            r->begin += length + (end != NULL);
            r->line++;
            *line = start;
            *bytes = length > 0 && start[length - 1] == '\r' ? length - 1 : length;
            return NULL;
        }
        if (r->at_end)
            return NULL;
        searched = n;
        TRY(fill(r));
    }
}

int64_t source_reader_line_number(const struct source_reader *r)
{
    return r->line;
}

/* Moves line and column over n bytes of text. */
static void advance(struct source_reader *r, const char *text, size_t n)
{
    const char *end = text + n, *newline;
    while ((newline = memchr(text, '\n', (size_t)(end - text)))) {
        r->line++;
        r->column = 0;
        text = newline + 1;
    }
    r->column += end - text;
}

static struct err *bad_text(struct source_reader *r, const char *text, size_t at)
{
    advance(r, text, at);
    unsigned char c = (unsigned char)text[at];
    return err_new(ERR_INVALID, "%s: line %" PRId64 ", byte %" PRId64 ": %s (0x%02x)", r->path,
                   r->line + 1, r->column + 1,
                   c ? "this is not UTF-8 text" : "a NUL byte: this is not text", c);
}

struct err *source_reader_text(struct source_reader *r, const char **text, size_t *bytes)
{
    *text = NULL;
    while (!r->at_end && r->end - r->begin < READ_BYTES)
        TRY(fill(r));
    if (!r->started && r->end >= strlen(BYTE_ORDER_MARK) &&
        memcmp(r->buffer, BYTE_ORDER_MARK, strlen(BYTE_ORDER_MARK)) == 0)
        r->begin += strlen(BYTE_ORDER_MARK);
    r->started = true;
    const char *start = r->buffer + r->begin;
    size_t n = r->end - r->begin, good = utf8_check(start, n);
    const char *nul = memchr(start, 0, good);
    if (nul)
        return bad_text(r, start, (size_t)(nul - start));
    /* Fewer than four bytes before the next read may be the beginning of a sequence. */
    if (good < n && (r->at_end || n - good >= 4))
        return bad_text(r, start, good);
    if (good == 0)
        return NULL;
    advance(r, start, good);
    r->begin += good;
    *text = start;
    *bytes = good;
    return NULL;
}

struct err *source_reader_hash(struct source_reader *r, XXH128_hash_t *out)
{
    while (!r->at_end) {
        r->begin = r->end; /* nobody will ask for it */
        TRY(fill(r));
    }
    *out = XXH3_128bits_digest(r->hash);
    return NULL;
}
