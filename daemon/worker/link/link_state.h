/* What the parts of the link share. Internal to link/.
 *
 * The program's threads append to the journal, post to meetings and read orders; the link's thread
 * (connection.c) owns the socket. A record is not queued in memory: the thread reads it back from
 * the journal when the daemon can take it, so a daemon that is gone for days costs none. */
#ifndef WORKER_LINK_STATE_H
#define WORKER_LINK_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "daemon/worker/link/journal.h"
#include "daemon/worker/link/link.h"

/* Somebody who waits in a meeting; lives on the waiter's stack. */
struct link_post {
    struct link_post *next;
    const char *key;
    const char *line; /* the message, with its newline */
    size_t line_bytes;
    bool sent;         /* over the present connection */
    cJSON *answer;     /* array of base64 strings; the waiter's */
    struct err *error; /* the waiter's */
};

struct link {
    struct link_identity identity;
    char *directory, *socket_path, *secret; /* owned */
    char name[32];                          /* of this worker's files: "rank-0", "task" */
    long long start_time;                   /* /proc/self/stat's */

    _Atomic unsigned orders;
    int wake_fd; /* eventfd: something for the thread to look at */
    pthread_t thread;
    bool running;

    pthread_mutex_t mutex; /* guards what is below, and appending to the journal */
    pthread_cond_t changed;
    struct journal journal;
    int64_t acked;
    cJSON *welcome;      /* the first one; constant once set */
    struct err *refused; /* the daemon wants nothing more of this worker */
    char trouble[256];   /* why there is no connection, for messages */
    struct link_post *posts;
    bool closing;
};

double link_now_s(void);
void link_wake(struct link *l);
/* What link_record gives for a refused worker: a copy. Called with the mutex held. */
struct err *link_refusal(const struct link *l);

/* The body of the thread; `user` is the link. */
void *connection_run(void *user);

#endif
