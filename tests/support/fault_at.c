/* To be preloaded into a whole program: its n-th operation of a kind fails, or is the last that it
 * does.
 *
 *   FAULT=kill FAULT_AT=n LD_PRELOAD=fault_at.so dllmd …
 *
 *   FAULT=kill      operations that somebody else can see: making, cutting, removing and renaming
 *                   files, writing, sending, syncing, and starting a process. SIGKILL comes just
 *                   before the n-th; of a write half is done.
 *   FAULT=ENOSPC    the same and opening: the n-th fails with that, or EIO, EACCES. Of a write half
 *                   is done before. A socket's connection is broken off instead, with ECONNRESET.
 *   FAULT=memory    allocations: the n-th gets NULL.
 *
 * They are counted over all threads from main() on, and reach into shared libraries (SQLite's and
 * libuv's too), which faults.h does not. What goes to standard output and error, or wakes a thread,
 * does not count.
 *
 * FAULT_EACH=k: of the allocations that the same calls lead to only the first k are counted; all
 * that SQLite does within one call is the same. So a program that allocates often is seen through.
 *
 * FAULT_STRUCK, a file's name, gets the stack of the operation that failed; FAULT_COUNT gets how
 * many there were when the process ends by itself.
 */
#undef _FILE_OFFSET_BITS /* it would make one name of open and open64 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FRAMES 40
#define PLACES (1 << 16) /* different ones, at most */

/* Exported symbols that no header declares here. */
typedef int main_fn(int argc, char **argv, char **environment);
int __libc_start_main(main_fn *fn, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*loader_fini)(void), void *stack_end);

static enum { FAULT_NONE, FAULT_KILL, FAULT_ERROR, FAULT_MEMORY } fault;
static int error;
static long target, each;
static const char *struck_path, *count_path;
static atomic_bool counting;
static atomic_long count;
static uintptr_t sqlite_begin, sqlite_end; /* where its code lies */

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* ---- Life ---- */

static void read_settings(void)
{
    static const struct {
        const char *name;
        int fault, error;
    } faults[] = {
        {"kill", FAULT_KILL, 0},         {"memory", FAULT_MEMORY, 0},
        {"ENOSPC", FAULT_ERROR, ENOSPC}, {"EACCES", FAULT_ERROR, EACCES},
        {"EIO", FAULT_ERROR, EIO},
    };
    const char *name = getenv("FAULT"), *n = getenv("FAULT_AT"), *k = getenv("FAULT_EACH");
    for (size_t i = 0; name && i < sizeof faults / sizeof faults[0]; i++) {
        if (strcmp(name, faults[i].name) != 0)
            continue;
        fault = faults[i].fault;
        error = faults[i].error;
    }
    target = n ? atol(n) : 0;
    each = k ? atol(k) : 0;
    struck_path = getenv("FAULT_STRUCK");
    count_path = getenv("FAULT_COUNT");
    unsetenv("LD_PRELOAD"); /* for this program, not for those that it starts */
}

static int find_sqlite(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size, (void)arg;
    if (!strstr(info->dlpi_name, "libsqlite3"))
        return 0;
    sqlite_begin = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t end = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr + info->dlpi_phdr[i].p_memsz;
        if (info->dlpi_phdr[i].p_type == PT_LOAD && end > sqlite_end)
            sqlite_end = end;
    }
    return 1;
}

static main_fn *real_main;

static int counted_main(int argc, char **argv, char **environment)
{
    void *frames[FRAMES];
    dl_iterate_phdr(find_sqlite, NULL);
    backtrace(frames, FRAMES); /* which loads what it needs at its first call */
    counting = true;
    return real_main(argc, argv, environment);
}

int __libc_start_main(main_fn *fn, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*loader_fini)(void), void *stack_end)
{
    read_settings();
    real_main = fn;
    return REAL(__libc_start_main)(counted_main, argc, argv, init, fini, loader_fini, stack_end);
}

__attribute__((destructor)) static void end(void)
{
    counting = false;
    FILE *f = count_path ? fopen(count_path, "w") : NULL;
    if (!f)
        return;
    fprintf(f, "%ld\n", count);
    fclose(f);
}

/* ---- Which one ---- */

static void tell(void)
{
    void *frames[FRAMES];
    int fd = struck_path ? REAL(open)(struck_path, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
    if (fd < 0)
        return;
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES), fd);
    close(fd);
}

static bool of_sqlite(const void *frame)
{
    return (uintptr_t)frame >= sqlite_begin && (uintptr_t)frame < sqlite_end;
}

/* Whether this place has been here `each` times already. */
static bool is_known(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        uint64_t place;
        long times;
    } places[PLACES];
    void *frames[FRAMES];
    int n = backtrace(frames, FRAMES);
    uint64_t place = 14695981039346656037u; /* FNV-1a */
    for (int i = 1; i < n; i++)
        if (!of_sqlite(frames[i]) || i + 1 == n || !of_sqlite(frames[i + 1]))
            place = (place ^ (uintptr_t)frames[i]) * 1099511628211u;
    pthread_mutex_lock(&lock);
    size_t at = place % PLACES;
    while (places[at].times && places[at].place != place)
        at = (at + 1) % PLACES;
    places[at].place = place;
    bool known = places[at].times++ >= each;
    pthread_mutex_unlock(&lock);
    return known;
}

static bool strikes(void)
{
    if (!counting || (each && is_known()))
        return false;
    if (atomic_fetch_add(&count, 1) + 1 != target)
        return false;
    tell();
    return true;
}

/* Whether this operation on a file fails, with errno set. */
static bool fails(void)
{
    if (fault == FAULT_MEMORY || !strikes())
        return false;
    if (fault == FAULT_KILL)
        raise(SIGKILL);
    errno = error;
    return true;
}

/* ---- Files ---- */

#define OPEN(name, parameters, arguments)                                                          \
    int name parameters                                                                            \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;                    \
        va_end(args);                                                                              \
        if ((fault == FAULT_ERROR || flags & (O_CREAT | O_TRUNC)) && fails())                      \
            return -1;                                                                             \
        return REAL(name) arguments;                                                               \
    }
OPEN(open, (const char *path, int flags, ...), (path, flags, mode))
OPEN(open64, (const char *path, int flags, ...), (path, flags, mode))
OPEN(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPEN(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))

#define PASS(type, name, parameters, arguments)                                                    \
    type name parameters                                                                           \
    {                                                                                              \
        return fails() ? (type)-1 : REAL(name) arguments;                                          \
    }
PASS(int, fsync, (int fd), (fd))
PASS(int, fdatasync, (int fd), (fd))
PASS(int, ftruncate, (int fd, off_t bytes), (fd, bytes))
PASS(int, ftruncate64, (int fd, off64_t bytes), (fd, bytes))
PASS(int, rename, (const char *from, const char *to), (from, to))
PASS(int, mkdir, (const char *path, mode_t mode), (path, mode))
PASS(int, rmdir, (const char *path), (path))
PASS(int, unlink, (const char *path), (path))
PASS(int, unlinkat, (int at, const char *path, int flags), (at, path, flags))

/* It returns its error. */
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const argv[], char *const envp[])
{
    if (fails())
        return error;
    return REAL(posix_spawn)(pid, path, actions, attributes, argv, envp);
}

/* ---- Writing ---- */

/* eventfd and its like have no type; it is threads that wake each other. Likewise what libuv writes
 * to a pipe is for itself: a signal has come. */
static bool counts(int fd, const void *caller)
{
    struct stat st;
    Dl_info info;
    return fd > 2 && fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) &&
           !(S_ISFIFO(st.st_mode) && dladdr(caller, &info) && strstr(info.dli_fname, "libuv"));
}

/* A connection that was reset is none any more. Returns the errno of what failed. */
static int break_off(int fd)
{
    return shutdown(fd, SHUT_RDWR) == 0 || errno == ENOTCONN ? ECONNRESET : error;
}

/* Half is written before it fails; an empty half does no harm. */
#define WRITE(name, parameters, arguments, half)                                                   \
    ssize_t name parameters                                                                        \
    {                                                                                              \
        if (fault == FAULT_MEMORY || !counts(fd, __builtin_return_address(0)) || !strikes())       \
            return REAL(name) arguments;                                                           \
        ssize_t done = REAL(name) half;                                                            \
        if (fault == FAULT_KILL)                                                                   \
            raise(SIGKILL);                                                                        \
        (void)done;                                                                                \
        errno = break_off(fd);                                                                     \
        return -1;                                                                                 \
    }
WRITE(write, (int fd, const void *bytes, size_t n), (fd, bytes, n), (fd, bytes, n / 2))
WRITE(pwrite, (int fd, const void *bytes, size_t n, off_t at), (fd, bytes, n, at),
      (fd, bytes, n / 2, at))
WRITE(pwrite64, (int fd, const void *bytes, size_t n, off64_t at), (fd, bytes, n, at),
      (fd, bytes, n / 2, at))
WRITE(writev, (int fd, const struct iovec *parts, int n), (fd, parts, n), (fd, parts, n / 2))

static bool send_fails(int fd)
{
    if (!fails())
        return false;
    errno = break_off(fd);
    return true;
}

#define SEND(name, parameters, arguments)                                                          \
    ssize_t name parameters                                                                        \
    {                                                                                              \
        return send_fails(fd) ? -1 : REAL(name) arguments;                                         \
    }
SEND(send, (int fd, const void *bytes, size_t n, int flags), (fd, bytes, n, flags))
SEND(sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))

/* ---- Memory ---- */

static bool no_memory(void)
{
    if (fault != FAULT_MEMORY || !strikes())
        return false;
    errno = ENOMEM;
    return true;
}

#define ALLOCATE(name, parameters, arguments)                                                      \
    void *name parameters                                                                          \
    {                                                                                              \
        static __typeof__(&name) real;                                                             \
        if (!real)                                                                                 \
            real = REAL(name);                                                                     \
        return no_memory() ? NULL : real arguments;                                                \
    }
ALLOCATE(malloc, (size_t bytes), (bytes))
ALLOCATE(calloc, (size_t n, size_t bytes), (n, bytes))
ALLOCATE(realloc, (void *old, size_t bytes), (old, bytes))
ALLOCATE(aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))

/* Of their own, so that a sanitizer's do not take from itself. */
char *strndup(const char *text, size_t most)
{
    size_t n = strnlen(text, most);
    char *copy = malloc(n + 1);
    if (copy) {
        memcpy(copy, text, n);
        copy[n] = '\0';
    }
    return copy;
}

char *strdup(const char *text)
{
    return strndup(text, strlen(text));
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    return no_memory() ? ENOMEM : REAL(posix_memalign)(out, alignment, bytes);
}
