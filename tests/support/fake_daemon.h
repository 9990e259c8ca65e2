/* The daemon's end of a worker's line (docs/worker-protocol.md), for tests: a thread that serves
 * one connection after the other the way the test says. What it has committed outlives connections
 * and pauses. A failed assertion in it aborts the test program. */
#ifndef TESTS_FAKE_DAEMON_H
#define TESTS_FAKE_DAEMON_H

#include <cjson/cJSON.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fake_connection {
    int fd, number; /* counted from 0 over the daemon's life */
    char *buffer;
    size_t bytes;
};

struct fake_daemon;
/* Serves a connection until it is to be closed. */
typedef void (*fake_handler)(struct fake_daemon *d, struct fake_connection *c, void *user);

struct fake_daemon {
    char directory[128], socket_path[160];
    int world;
    double lease_s;
    fake_handler handler; /* NULL: fake_serve */
    void *user;

    pthread_t thread;
    int listener, connections;
    atomic_bool stopping;

    pthread_mutex_t mutex; /* guards what is below */
    cJSON *hello;          /* the last one */
    cJSON **records;       /* [n_records]: committed, record n at n - 1 */
    int64_t n_records;
    int current_fd; /* -1: none */
};

/* Makes a directory of its own, and listens there. */
void fake_daemon_start(struct fake_daemon *d, int world, fake_handler handler, void *user);
/* Gone and back: connections are cut, nobody listens in between. */
void fake_daemon_pause(struct fake_daemon *d);
void fake_daemon_resume(struct fake_daemon *d);
/* Removes the directory, too. */
void fake_daemon_stop(struct fake_daemon *d);

/* A descriptor that holds the bootstrap of a rank of job 1, attempt 1; of task 7 for rank -1. */
int fake_bootstrap(const struct fake_daemon *d, int rank);

/* The next message, the caller's; NULL when the worker or the test has ended the connection. */
cJSON *fake_receive(struct fake_daemon *d, struct fake_connection *c);
void fake_send(struct fake_connection *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* To whoever is connected; false when nobody is. */
bool fake_order(struct fake_daemon *d, const char *line);

/* Takes the hello and answers it. */
bool fake_welcome(struct fake_daemon *d, struct fake_connection *c);
/* Commits a record, which must be the one after the last or one that is there already. */
void fake_commit(struct fake_daemon *d, cJSON *record);
/* As a daemon does: welcome, commit and acknowledge, answer meetings with what this rank posted,
 * for every rank. */
void fake_serve(struct fake_daemon *d, struct fake_connection *c);

int64_t fake_records(struct fake_daemon *d);

#endif
