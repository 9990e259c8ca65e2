/* dllm-worker: one rank of a job, or one task. Started by dllmd, which gives it a descriptor to
 * read its identity and secret from (docs/worker-protocol.md); there is nothing to configure here.
 *
 * As a systemd unit (--unit) that descriptor is standard input, and standard output and error go to
 * the journal until it knows whose log it writes.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/worker/link/link.h"
#include "daemon/worker/task.h"
#include "daemon/worker/train.h"

#define BOOTSTRAP_FD 3
#define EXIT_NOT_BEGUN 75 /* EX_TEMPFAIL: nobody said who it is, or the daemon was not there */
#define CONNECT_TIMEOUT_S 60.0
#define GOODBYE_TIMEOUT_S 30.0

static struct link *signalled_link;

static void on_terminate(int signal)
{
    (void)signal;
    link_signal_stop(signalled_link);
}

static void handle_signals(struct link *link)
{
    signalled_link = link;
    struct sigaction stop = {.sa_handler = on_terminate, .sa_flags = SA_RESTART};
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGINT, &stop, NULL);
}

static int usage(FILE *to)
{
    fputs("usage: dllm-worker [--task | --unit]\n"
          "\n"
          "One rank of a training job, or with --task one task. dllmd starts it and hands\n"
          "it its identity on descriptor 3; it is of no use by hand.\n"
          "\n"
          "  --task       run a task: prepare a dataset\n"
          "  --unit       as a systemd unit: identity on standard input, rank or task\n"
          "               as it says; the log is opened here\n"
          "  --version    print the version\n"
          "  --help       print this\n",
          to);
    return to == stdout ? EXIT_SUCCESS : 2;
}

/* The last record of a process that failed. */
static void record_error(struct link *link, const struct err *e)
{
    cJSON *fields = cJSON_CreateObject();
    cJSON_AddStringToObject(fields, "error", err_kind_name(err_kind(e)));
    cJSON_AddStringToObject(fields, "reason", err_message(e));
    struct err *failure = link_record(link, "error", fields);
    if (failure)
        log_error("cannot record it: %s", err_message(failure));
    err_free(failure);
}

/* Another descriptor of standard input, which becomes /dev/null. No thread runs yet. */
static int take_stdin(void)
{
    unsetenv("JOURNAL_STREAM"); /* soon it is a file */
    int fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, BOOTSTRAP_FD);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    if (null > STDERR_FILENO)
        close(null);
    return fd;
}

/* What dllmd does for a worker that it starts itself. */
static void open_log(const struct link_identity *identity)
{
    char path[4096], name[32] = "task";
    if (!identity->is_task)
        snprintf(name, sizeof name, "rank-%d", identity->rank);
    snprintf(path, sizeof path, "%s/%s.log", identity->directory, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (fd < 0) {
        log_warning("cannot open %s, so this log stays here: %s", path, strerror(errno));
        return;
    }
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    close(fd);
}

static int run(bool is_task, bool is_unit)
{
    struct link *link;
    signal(SIGPIPE, SIG_IGN);
    struct err *e = link_open(is_unit ? take_stdin() : BOOTSTRAP_FD, CONNECT_TIMEOUT_S, &link);
    if (e) {
        log_error("cannot begin: %s", err_message(e));
        err_free(e);
        return EXIT_NOT_BEGUN;
    }
    if (is_unit) {
        open_log(link_identity(link));
        is_task = link_identity(link)->is_task;
    }
    handle_signals(link);
    bool stopped = false;
    e = is_task ? task_run(link, &stopped) : train_run(link, &stopped);
    if (e) {
        log_error("%s", err_message(e));
        record_error(link, e);
    }
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGTERM, &ignore, NULL);
    sigaction(SIGINT, &ignore, NULL);
    bool orphan = stopped && (link_orders(link) & LINK_LEASE_OVER);
    if (orphan) /* nobody is there to say goodbye to */
        e = err_new(ERR_TIMEOUT, "its lease was over: the daemon was gone for too long");
    link_close(link, stopped ? "stopped" : e ? "error" : "done", e, orphan ? 0 : GOODBYE_TIMEOUT_S);
    int status = e && !stopped ? EXIT_FAILURE : EXIT_SUCCESS;
    err_free(e);
    return status;
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"task", no_argument, NULL, 't'},
        {"unit", no_argument, NULL, 'u'},
        {"help", no_argument, NULL, 'h'},
        {"version", no_argument, NULL, 'v'},
        {0},
    };
    bool is_task = false, is_unit = false;
    int option;
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (option) {
        case 't':
            is_task = true;
            break;
        case 'u':
            is_unit = true;
            break;
        case 'h':
            return usage(stdout);
        case 'v':
            puts("dllm-worker " DLLMD_VERSION);
            return EXIT_SUCCESS;
        default:
            return usage(stderr);
        }
    }
    return optind < argc ? usage(stderr) : run(is_task, is_unit);
}
