/* The daemon's end of the line to its workers: a Unix stream socket with one JSON object a line
 * (docs/worker-protocol.md). This file knows bytes and lines; what they mean is run.h's. Loop
 * thread only. */
#ifndef CONTROL_LINE_H
#define CONTROL_LINE_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "daemon/base/err.h"

struct line_server;
struct line;

struct line_handlers {
    void *user;
    /* An object came; owned by the server. The handler may close the line. */
    void (*message)(void *user, struct line *line, const cJSON *message);
    /* The line is closed, by whom ever; it is gone after this. */
    void (*closed)(void *user, struct line *line);
};

/* Listens at `path` (for our user, and for our group if the umask lets it write); what lies there
 * from a dead daemon is replaced. */
struct err *line_server_open(uv_loop_t *loop, const char *path,
                             const struct line_handlers *handlers, struct line_server **out);
/* Whether the path still leads to our socket. */
bool line_server_reached(const struct line_server *server);
/* Listens at the path again, which is made anew; lines that there are stay. After an error it
 * listens nowhere. */
struct err *line_server_listen(struct line_server *server);
/* Closes all lines (without `closed`), removes the socket; freed in the turns after. NULL is
 * allowed. */
void line_server_close(struct line_server *server);

/* Takes the message; an overfull line is closed. Not after line_close. */
void line_send(struct line *line, cJSON *message);
/* After what was sent has gone out; nothing is read any more. */
void line_close(struct line *line);
/* A line that never says hello is closed after a while; this one did. */
void line_accepted(struct line *line, void *owner);
void *line_owner(const struct line *line); /* NULL: not accepted */
/* From SO_PEERCRED. */
pid_t line_peer(const struct line *line);
/* Back-pressure: nothing is read while held. */
void line_hold(struct line *line, bool hold);

#endif
