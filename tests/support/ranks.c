/* The parent and each rank share a socket pair. A message is a head, a key and data; a rank sends
 * posts, pieces of its result, and at last its error; the parent answers a post with one message
 * per rank. The parent waits for all sockets; the end of one is the end of its rank. */
#include "tests/support/ranks.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum message_type { MESSAGE_POST = 1, MESSAGE_RESULT, MESSAGE_ERROR, MESSAGE_ANSWER };

#define KEY_BYTES 128

struct head {
    int type;
    int kind; /* of an error */
    size_t bytes;
    char key[KEY_BYTES];
};

/* One key's posts. */
struct set {
    struct set *next;
    char key[KEY_BYTES];
    int n_posted;
    struct meeting_bytes *posts;
    bool *posted;
};

struct rank {
    int fd;
    pid_t pid;
    bool running;
    struct rank_outcome outcome;
};

struct run {
    int world;
    struct rank *ranks;
    struct set *sets;
    struct err *first;
};

/* The rank's end of its socket pair. */
static int to_parent = -1;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static struct err *send_all(int fd, const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = send(fd, (const char *)data + done, bytes - done, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return err_errno(errno, "cannot send to the other end of a rank");
        done += n > 0 ? (size_t)n : 0;
    }
    return NULL;
}

static struct err *receive_all(int fd, void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = recv(fd, (char *)data + done, bytes - done, 0);
        if (n == 0)
            return err_new(ERR_ABORTED, "the other end of a rank is gone");
        if (n < 0 && errno != EINTR)
            return err_errno(errno, "cannot receive from the other end of a rank");
        done += n > 0 ? (size_t)n : 0;
    }
    return NULL;
}

static struct err *send_message(int fd, int type, int kind, const char *key, const void *data,
                                size_t bytes)
{
    struct head head = {.type = type, .kind = kind, .bytes = bytes};
    snprintf(head.key, sizeof head.key, "%s", key);
    TRY(send_all(fd, &head, sizeof head));
    return send_all(fd, data, bytes);
}

/* Data has a zero behind it and is the caller's. */
static struct err *receive_message(int fd, struct head *head, void **data)
{
    TRY(receive_all(fd, head, sizeof *head));
    *data = calloc(1, head->bytes + 1);
    if (!*data)
        return err_no_memory();
    struct err *e = receive_all(fd, *data, head->bytes);
    if (e)
        free(*data);
    return e;
}

/* ---- in a rank ---- */

static struct err *exchange(void *user, const char *key, const void *data, size_t bytes, int world,
                            double timeout_s, struct meeting_bytes *all)
{
    int ranks = *(const int *)user;
    if (world != ranks)
        return err_new(ERR_INVALID, "meeting \"%s\" of %d ranks, but there are %d", key, world,
                       ranks);
    TRY(send_message(to_parent, MESSAGE_POST, 0, key, data, bytes));
    struct pollfd answer = {.fd = to_parent, .events = POLLIN};
    if (poll(&answer, 1, (int)(timeout_s * 1e3) + 1) == 0)
        return err_new(ERR_TIMEOUT, "meeting \"%s\" was not complete after %g s", key, timeout_s);
    for (int r = 0; r < world; r++) {
        struct head head;
        struct err *e = receive_message(to_parent, &head, &all[r].data);
        if (e) {
            meeting_free(all, r);
            return e;
        }
        all[r].bytes = head.bytes;
    }
    return NULL;
}

void ranks_result(const void *data, size_t bytes)
{
    err_free(send_message(to_parent, MESSAGE_RESULT, 0, "", data, bytes));
}

/* Present where a leak sanitizer is linked. */
int __lsan_do_recoverable_leak_check(void) __attribute__((weak));

static void run_rank(int rank, int world, ranks_body body, void *user)
{
    struct meeting meeting = {.exchange = exchange, .user = &world};
    struct err *e = body(rank, world, &meeting, user);
    if (!e && __lsan_do_recoverable_leak_check && __lsan_do_recoverable_leak_check())
        e = err_new(ERR_INTERNAL, "memory of rank %d leaks", rank);
    if (e) {
        const char *message = err_message(e);
        err_free(
            send_message(to_parent, MESSAGE_ERROR, (int)err_kind(e), "", message, strlen(message)));
        err_free(e);
    }
    fflush(NULL);
    _exit(0);
}

/* ---- in the parent ---- */

static void fail(struct run *run, int rank, struct err *e)
{
    struct rank_outcome *o = &run->ranks[rank].outcome;
    if (!o->error) {
        o->error = e;
        if (!run->first)
            run->first = err_new(err_kind(e), "rank %d: %s", rank, err_message(e));
    } else {
        err_free(e);
    }
}

static struct err *start(struct run *run, int rank, ranks_body body, void *user)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        return err_errno(errno, "cannot make a socket pair");
    pid_t parent = getpid();
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) {
        close(ends[0]);
        close(ends[1]);
        return err_errno(errno, "cannot start rank %d", rank);
    }
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        for (int r = 0; r < rank; r++)
            close(run->ranks[r].fd);
        close(ends[0]);
        to_parent = ends[1];
        run_rank(rank, run->world, body, user);
    }
    close(ends[1]);
    run->ranks[rank].fd = ends[0];
    run->ranks[rank].pid = pid;
    run->ranks[rank].running = true;
    return NULL;
}

static struct set *find_set(struct run *run, const char *key)
{
    for (struct set *s = run->sets; s; s = s->next)
        if (strcmp(s->key, key) == 0)
            return s;
    struct set *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    snprintf(s->key, sizeof s->key, "%s", key);
    s->posts = calloc((size_t)run->world, sizeof *s->posts);
    s->posted = calloc((size_t)run->world, sizeof *s->posted);
    s->next = run->sets;
    run->sets = s;
    return s->posts && s->posted ? s : NULL;
}

static struct err *answer(const struct run *run, int rank, const struct set *s)
{
    for (int r = 0; r < run->world; r++)
        TRY(send_message(run->ranks[rank].fd, MESSAGE_ANSWER, 0, s->key, s->posts[r].data,
                         s->posts[r].bytes));
    return NULL;
}

static struct err *take_post(struct run *run, int rank, const struct head *head, const void *data)
{
    struct set *s = find_set(run, head->key);
    if (!s)
        return err_no_memory();
    struct meeting_bytes *post = &s->posts[rank];
    if (s->posted[rank]) {
        if (post->bytes != head->bytes || memcmp(post->data, data, head->bytes) != 0)
            return err_new(ERR_CONFLICT, "posted other bytes at meeting \"%s\"", s->key);
        return s->n_posted == run->world ? answer(run, rank, s) : NULL;
    }
    post->data = malloc(head->bytes + 1);
    if (!post->data)
        return err_no_memory();
    memcpy(post->data, data, head->bytes);
    post->bytes = head->bytes;
    s->posted[rank] = true;
    if (++s->n_posted < run->world)
        return NULL;
    for (int r = 0; r < run->world; r++)
        if (run->ranks[r].running)
            TRY(answer(run, r, s));
    return NULL;
}

static struct err *take_result(struct rank_outcome *o, const void *data, size_t bytes)
{
    char *grown = realloc(o->result, o->result_bytes + bytes + 1);
    if (!grown)
        return err_no_memory();
    memcpy(grown + o->result_bytes, data, bytes);
    o->result = grown;
    o->result_bytes += bytes;
    return NULL;
}

static struct err *take_end(struct rank *rank)
{
    int status = 0;
    rank->running = false;
    close(rank->fd);
    while (waitpid(rank->pid, &status, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(status))
        return err_new(ERR_INTERNAL, "killed by signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    if (WEXITSTATUS(status))
        return err_new(ERR_INTERNAL, "exited with %d", WEXITSTATUS(status));
    return NULL;
}

/* Takes one message, or the end, of a rank whose socket has something. */
static void serve(struct run *run, int rank)
{
    struct rank *of = &run->ranks[rank];
    struct head head;
    void *data;
    struct err *e = receive_message(of->fd, &head, &data);
    if (e) {
        err_free(e);
        e = take_end(of);
    } else {
        if (head.type == MESSAGE_POST)
            e = take_post(run, rank, &head, data);
        else if (head.type == MESSAGE_RESULT)
            e = take_result(&of->outcome, data, head.bytes);
        else
            e = err_new((enum err_kind)head.kind, "%s", (const char *)data);
        free(data);
    }
    if (e)
        fail(run, rank, e);
}

static int count_running(const struct run *run)
{
    int n = 0;
    for (int r = 0; r < run->world; r++)
        n += run->ranks[r].running;
    return n;
}

static void serve_all(struct run *run, double timeout_s, bool all_to_end, struct pollfd *polls)
{
    double end_s = now_s() + timeout_s;
    while (count_running(run) && (all_to_end || !run->first)) {
        double left_s = end_s - now_s();
        if (left_s <= 0)
            break;
        for (int r = 0; r < run->world; r++)
            polls[r] = (struct pollfd){.fd = run->ranks[r].running ? run->ranks[r].fd : -1,
                                       .events = POLLIN};
        poll(polls, (nfds_t)run->world, (int)(left_s * 1e3) + 1);
        for (int r = 0; r < run->world; r++)
            if (run->ranks[r].running && polls[r].revents)
                serve(run, r);
    }
    for (int r = 0; r < run->world; r++) {
        if (!run->ranks[r].running)
            continue;
        kill(run->ranks[r].pid, SIGKILL);
        err_free(take_end(&run->ranks[r]));
        if (all_to_end || !run->first)
            fail(run, r, err_new(ERR_TIMEOUT, "not finished after %g s", timeout_s));
        else
            fail(run, r, err_new(ERR_ABORTED, "killed because another rank failed"));
    }
}

struct err *ranks_run(int world, ranks_body body, void *user, double timeout_s,
                      struct rank_outcome *outcomes)
{
    struct run run = {.world = world, .ranks = calloc((size_t)world, sizeof *run.ranks)};
    struct pollfd *polls = calloc((size_t)world, sizeof *polls);
    if (!run.ranks || !polls) {
        free(run.ranks);
        free(polls);
        return err_no_memory();
    }
    for (int r = 0; r < world && !run.first; r++) {
        struct err *e = start(&run, r, body, user);
        if (e)
            fail(&run, r, e);
    }
    serve_all(&run, timeout_s, outcomes && !run.first, polls);
    while (run.sets) {
        struct set *s = run.sets;
        run.sets = s->next;
        if (s->posts)
            meeting_free(s->posts, world);
        free(s->posts);
        free(s->posted);
        free(s);
    }
    for (int r = 0; r < world; r++) {
        if (outcomes)
            outcomes[r] = run.ranks[r].outcome;
        else
            ranks_free(&run.ranks[r].outcome, 1);
    }
    free(run.ranks);
    free(polls);
    return run.first;
}

void ranks_free(struct rank_outcome *outcomes, int world)
{
    for (int r = 0; r < world; r++) {
        err_free(outcomes[r].error);
        free(outcomes[r].result);
        outcomes[r] = (struct rank_outcome){0};
    }
}
