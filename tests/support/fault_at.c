/* To be preloaded into a whole program: its n-th operation on a file, a pipe or a socket is the
 * last that it does.
 *
 *   KILL_AT=n LD_PRELOAD=kill_at.so dllmd …
 *
 * Operations are those that somebody else can see: making, removing and renaming files, making and
 * cutting them, writing, sending, syncing, and starting a process. They are counted over all
 * threads, and reach into shared libraries (SQLite's and libuv's too), which faults.h does not. The
 * process gets SIGKILL just before the operation; of a write to a file half is done. What goes to
 * standard output and error, or wakes a thread, does not count.
 *
 * When the process ends by itself, KILL_AT_COUNT, a file's name, gets how many there were.
 */
#undef _FILE_OFFSET_BITS /* it would make one name of open and open64 */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long count;
static long target;

__attribute__((constructor)) static void begin(void)
{
    const char *n = getenv("KILL_AT");
    target = n ? atol(n) : 0;
    unsetenv("LD_PRELOAD"); /* for this program, not for those that it starts */
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("KILL_AT_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (!f)
        return;
    fprintf(f, "%ld\n", count);
    fclose(f);
}

static bool strikes(void)
{
    return atomic_fetch_add(&count, 1) + 1 == target;
}

static void pass(void)
{
    if (strikes())
        raise(SIGKILL);
}

/* eventfd and its like have no type; it is threads that wake each other. */
static bool counts(int fd)
{
    struct stat st;
    return fd > 2 && fstat(fd, &st) == 0 && (st.st_mode & S_IFMT);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                                                 \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        va_list args;                                                                              \
        va_start(args, flags);                                                                     \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, mode_t) : 0;                    \
        va_end(args);                                                                              \
        if (flags & (O_CREAT | O_TRUNC))                                                           \
            pass();                                                                                \
        return REAL(name)(path, flags, mode);                                                      \
    }
OPEN(open)
OPEN(open64)

/* Of a file, half; an empty half does no harm. */
#define WRITE(name, parameters, arguments, half)                                                   \
    ssize_t name parameters                                                                        \
    {                                                                                              \
        if (counts(fd) && strikes()) {                                                             \
            ssize_t done = REAL(name) half;                                                        \
            raise(SIGKILL);                                                                        \
            return done;                                                                           \
        }                                                                                          \
        return REAL(name) arguments;                                                               \
    }
WRITE(write, (int fd, const void *bytes, size_t n), (fd, bytes, n), (fd, bytes, n / 2))
WRITE(pwrite, (int fd, const void *bytes, size_t n, off_t at), (fd, bytes, n, at),
      (fd, bytes, n / 2, at))
WRITE(pwrite64, (int fd, const void *bytes, size_t n, off64_t at), (fd, bytes, n, at),
      (fd, bytes, n / 2, at))
WRITE(writev, (int fd, const struct iovec *parts, int n), (fd, parts, n), (fd, parts, n / 2))

#define PASS(type, name, parameters, arguments)                                                    \
    type name parameters                                                                           \
    {                                                                                              \
        pass();                                                                                    \
        return REAL(name) arguments;                                                               \
    }
PASS(ssize_t, send, (int fd, const void *bytes, size_t n, int flags), (fd, bytes, n, flags))
PASS(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags))
PASS(int, fsync, (int fd), (fd))
PASS(int, fdatasync, (int fd), (fd))
PASS(int, ftruncate, (int fd, off_t bytes), (fd, bytes))
PASS(int, ftruncate64, (int fd, off64_t bytes), (fd, bytes))
PASS(int, rename, (const char *from, const char *to), (from, to))
PASS(int, mkdir, (const char *path, mode_t mode), (path, mode))
PASS(int, rmdir, (const char *path), (path))
PASS(int, unlink, (const char *path), (path))
PASS(int, unlinkat, (int at, const char *path, int flags), (at, path, flags))
PASS(int, posix_spawn,
     (pid_t * pid, const char *path, const posix_spawn_file_actions_t *actions,
      const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]),
     (pid, path, actions, attributes, argv, envp))
