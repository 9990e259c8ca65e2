/* Runs a function as the ranks of a job: `world` processes forked from the test, which serves
 * their meeting. */
#ifndef TESTS_RANKS_H
#define TESTS_RANKS_H

#include "daemon/worker/comm/comm.h"

/* Runs in a process of its own; what it returns is told to the parent. A leak that a leak
 * sanitizer sees counts as an error, a failed assertion ends the process. */
typedef struct err *(*ranks_body)(int rank, int world, const struct meeting *meeting, void *user);

/* For the body: hands bytes to the parent, in addition to what was handed before. */
void ranks_result(const void *data, size_t bytes);

struct rank_outcome {
    struct err *error; /* NULL: returned without an error */
    void *result;      /* what the rank handed over, in one piece */
    size_t result_bytes;
};

/* Returns what went wrong first in time: what a body returned, a rank that died (ERR_INTERNAL), or
 * timeout_s over for all (ERR_TIMEOUT; the rest is killed). With outcomes [world] every rank may
 * go on to its own end; without (NULL), the others are killed at the first failure. */
struct err *ranks_run(int world, ranks_body body, void *user, double timeout_s,
                      struct rank_outcome *outcomes);
void ranks_free(struct rank_outcome *outcomes, int world);

#endif
