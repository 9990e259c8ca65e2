/* Settings of dllmd: defaults, then a JSON file, then flags. */
#ifndef CONTROL_CONFIG_H
#define CONTROL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/err.h"
#include "daemon/base/log.h"
#include "daemon/control/launch.h"

struct config {
    char *listen_address;            /* numeric */
    int listen_port;                 /* 0: any free one */
    bool insecure;                   /* may listen beyond loopback without TLS and tokens */
    bool auth;                       /* tokens are asked for on loopback, too */
    char *tls_certificate, *tls_key; /* PEM files, absolute; both or none */
    char **hosts;                    /* names of this service, besides addresses */
    size_t host_count;
    double requests_per_s; /* of one address; 0: no limit */
    char *state_directory;
    char *runtime_directory; /* socket of the workers; systemd's, else state_directory/run */
    char **roots;            /* resolved; under these lie the files that specs name */
    size_t root_count;
    enum launch_choice launcher;
    char *worker;      /* the program dllm-worker */
    char *cuda_plugin; /* libdllm-cuda.so */
    int64_t slots;     /* ranks and tasks on the CPU at a time */
    double lease_s;
    double stop_timeout_s;  /* from the order to stop to SIGTERM */
    double term_timeout_s;  /* from SIGTERM to SIGKILL */
    double stall_timeout_s; /* a run that reports nothing for so long is ended */
    double backoff_s;       /* before the first restart of a failed attempt; doubles each time */
    enum log_level log_level;
};

/* What the command line says; NULL or 0: nothing. */
struct config_flags {
    const char *file; /* NULL: CONFIG_DEFAULT_FILE if it is there */
    const char *state_directory;
    const char *listen; /* "host:port", "[v6]:port" */
    const char *slots;
    const char *worker;
};

#define CONFIG_DEFAULT_FILE "/etc/dllmd/dllmd.json"

/* Fills *out. ERR_INVALID lists everything that is wrong, a line each. *out is to be freed in any
 * case. Makes no directory and opens nothing but the file, the certificate and its key. */
struct err *config_load(const struct config_flags *flags, struct config *out);
void config_free(struct config *config);

#endif
