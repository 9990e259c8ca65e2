/* To be preloaded into a whole program: its n-th operation of a kind fails, or is the last that it
 * does.
 *
 *   FAULT=kill FAULT_AT=n LD_PRELOAD=fault_at.so dllmd …
 *
 *   FAULT=kill      operations that somebody else can see: making, cutting, removing and renaming
 *                   files, writing, sending, syncing, and starting a process. SIGKILL comes just
 *                   before the n-th; of a write half is done.
 *   FAULT=ENOSPC    the same and opening: the n-th fails with that, or EIO, EACCES; a socket
 *                   always with ECONNRESET. Of a write half is done before.
 *   FAULT=memory    allocations: the n-th gets NULL.
 *
 * They are counted over all threads from main() on, and reach into shared libraries (SQLite's and
 * libuv's too), which faults.h does not. What goes to standard output and error, or wakes a thread,
 * does not count. FAULT_SPARED, names of libraries with blanks between: what they ask for directly
 * counts, but does not fail.
 *
 * FAULT_STRUCK, a file's name, gets the stack of the operation that failed; FAULT_COUNT gets how
 * many there were when the process ends by itself.
 */
#undef _FILE_OFFSET_BITS /* it would make one name of open and open64 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define FRAMES 24

/* Exported symbols that no header declares here. */
typedef int main_fn(int argc, char **argv, char **environment);
int __libc_start_main(main_fn *fn, int argc, char **argv, void (*init)(void), void (*fini)(void),
                      void (*loader_fini)(void), void *stack_end);

static enum { FAULT_NONE, FAULT_KILL, FAULT_ERROR, FAULT_MEMORY } fault;
static int error;
static long target;
static const char *spared, *struck_path, *count_path;
static atomic_bool counting;
static atomic_long count;

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
    const char *name = getenv("FAULT"), *n = getenv("FAULT_AT");
    for (size_t i = 0; name && i < sizeof faults / sizeof faults[0]; i++) {
        if (strcmp(name, faults[i].name) != 0)
            continue;
        fault = faults[i].fault;
        error = faults[i].error;
    }
    target = n ? atol(n) : 0;
    spared = getenv("FAULT_SPARED");
    struck_path = getenv("FAULT_STRUCK");
    count_path = getenv("FAULT_COUNT");
    unsetenv("LD_PRELOAD"); /* for this program, not for those that it starts */
}

static main_fn *real_main;

static int counted_main(int argc, char **argv, char **environment)
{
    void *frames[FRAMES];
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

static bool is_spared(const void *caller)
{
    Dl_info info;
    if (!spared || !dladdr(caller, &info) || !info.dli_fname)
        return false;
    const char *file = strrchr(info.dli_fname, '/');
    char name[128];
    snprintf(name, sizeof name, "%.100s", file ? file + 1 : info.dli_fname);
    name[strcspn(name, ".")] = '\0';
    return strstr(spared, name) != NULL;
}

static void tell(void)
{
    void *frames[FRAMES];
    int fd = struck_path ? REAL(open)(struck_path, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
    if (fd < 0)
        return;
    backtrace_symbols_fd(frames, backtrace(frames, FRAMES), fd);
    close(fd);
}

static bool strikes(const void *caller)
{
    if (!counting || atomic_fetch_add(&count, 1) + 1 != target || is_spared(caller))
        return false;
    tell();
    return true;
}

/* Whether this operation on a file fails, with errno set. */
static bool fails(const void *caller)
{
    if (fault == FAULT_MEMORY || !strikes(caller))
        return false;
    if (fault == FAULT_KILL)
        raise(SIGKILL);
    errno = error;
    return true;
}

#define FAILS() fails(__builtin_return_address(0))

/* ---- Files ---- */

#define OPEN(name, parameters, arguments)                                                          \
    int name parameters                                                                            \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;                    \
        va_end(args);                                                                              \
        if ((fault == FAULT_ERROR || flags & (O_CREAT | O_TRUNC)) && FAILS())                      \
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
        return FAILS() ? (type)-1 : REAL(name) arguments;                                          \
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
    if (FAILS())
        return error;
    return REAL(posix_spawn)(pid, path, actions, attributes, argv, envp);
}

/* ---- Writing ---- */

/* eventfd and its like have no type; it is threads that wake each other. */
static bool counts(int fd)
{
    struct stat st;
    return fd > 2 && fstat(fd, &st) == 0 && (st.st_mode & S_IFMT);
}

/* Of a file half is written before it fails; an empty half does no harm. */
#define WRITE(name, parameters, arguments, half)                                                   \
    ssize_t name parameters                                                                        \
    {                                                                                              \
        if (fault == FAULT_MEMORY || !counts(fd) || !strikes(__builtin_return_address(0)))         \
            return REAL(name) arguments;                                                           \
        ssize_t done = REAL(name) half;                                                            \
        if (fault == FAULT_KILL)                                                                   \
            raise(SIGKILL);                                                                        \
        (void)done;                                                                                \
        errno = error;                                                                             \
        return -1;                                                                                 \
    }
WRITE(write, (int fd, const void *bytes, size_t n), (fd, bytes, n), (fd, bytes, n / 2))
WRITE(pwrite, (int fd, const void *bytes, size_t n, off_t at), (fd, bytes, n, at),
      (fd, bytes, n / 2, at))
WRITE(pwrite64, (int fd, const void *bytes, size_t n, off64_t at), (fd, bytes, n, at),
      (fd, bytes, n / 2, at))
WRITE(writev, (int fd, const struct iovec *parts, int n), (fd, parts, n), (fd, parts, n / 2))

static bool send_fails(const void *caller)
{
    if (!fails(caller))
        return false;
    errno = ECONNRESET;
    return true;
}

#define SEND(name, parameters, arguments)                                                          \
    ssize_t name parameters                                                                        \
    {                                                                                              \
        return send_fails(__builtin_return_address(0)) ? -1 : REAL(name) arguments;                \
    }
SEND(send, (int fd, const void *bytes, size_t n, int flags), (fd, bytes, n, flags))
SEND(sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))

/* ---- Memory ---- */

static bool no_memory(const void *caller)
{
    if (fault != FAULT_MEMORY || !strikes(caller))
        return false;
    errno = ENOMEM;
    return true;
}

#define NO_MEMORY() no_memory(__builtin_return_address(0))

#define ALLOCATE(name, parameters, arguments)                                                      \
    void *name parameters                                                                          \
    {                                                                                              \
        static __typeof__(&name) real;                                                             \
        if (!real)                                                                                 \
            real = REAL(name);                                                                     \
        return NO_MEMORY() ? NULL : real arguments;                                                \
    }
ALLOCATE(malloc, (size_t bytes), (bytes))
ALLOCATE(calloc, (size_t n, size_t bytes), (n, bytes))
ALLOCATE(realloc, (void *old, size_t bytes), (old, bytes))
ALLOCATE(aligned_alloc, (size_t alignment, size_t bytes), (alignment, bytes))

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    return NO_MEMORY() ? ENOMEM : REAL(posix_memalign)(out, alignment, bytes);
}
