#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/log.h"
#include "daemon/control/config.h"
#include "daemon/control/daemon.h"
#include "daemon/control/journal.h"

static void print_help(void)
{
    fputs("Usage: dllmd [OPTION]...\n"
          "Train diffusion language models: queue jobs, run their workers, keep and\n"
          "show what they do. Submit jobs over HTTP: POST /v1/jobs.\n"
          "\n"
          "  --config FILE       settings, JSON (default: " CONFIG_DEFAULT_FILE ",\n"
          "                      if it is there)\n"
          "  --state DIR         where jobs, datasets and the database are kept\n"
          "                      (default: /var/lib/dllmd for root, else\n"
          "                      ~/.local/state/dllmd)\n"
          "  --listen ADDR:PORT  where HTTP is served (default: 127.0.0.1:8470);\n"
          "                      port 0: any free one, told in DIR/run/url\n"
          "  --slots N           ranks and tasks on the CPU at a time (default:\n"
          "                      the number of cores)\n"
          "  --worker FILE       the program dllm-worker\n"
          "  --check-config      check the settings, say what is wrong, and end\n"
          "  --create-admin-token  make a token of the role admin, print it once,\n"
          "                      and end; the daemon may be running\n"
          "  --version           print the version and end\n"
          "  --help              print this and end\n"
          "\n"
          "Flags win over the file. SIGTERM ends the daemon; its workers go on and\n"
          "are found again by the next one. SIGHUP reads the TLS certificate again.\n",
          stdout);
}

enum {
    OPT_CONFIG = 256,
    OPT_STATE,
    OPT_LISTEN,
    OPT_SLOTS,
    OPT_WORKER,
    OPT_CHECK,
    OPT_TOKEN,
    OPT_VERSION
};

static const struct option options[] = {
    {"config", required_argument, NULL, OPT_CONFIG},
    {"state", required_argument, NULL, OPT_STATE},
    {"listen", required_argument, NULL, OPT_LISTEN},
    {"slots", required_argument, NULL, OPT_SLOTS},
    {"worker", required_argument, NULL, OPT_WORKER},
    {"check-config", no_argument, NULL, OPT_CHECK},
    {"create-admin-token", no_argument, NULL, OPT_TOKEN},
    {"version", no_argument, NULL, OPT_VERSION},
    {"help", no_argument, NULL, 'h'},
    {NULL, 0, NULL, 0},
};

/* The token alone on standard output, so that it can be taken from there. */
static struct err *print_admin_token(const struct config *config)
{
    char token[API_TOKEN_BYTES], name[API_TOKEN_BYTES];
    log_set_level(LOG_LEVEL_WARNING);
    TRY(daemon_create_admin_token(config, token, name));
    puts(token);
    fprintf(stderr, "This is the token \"%s\" of the role admin; it is not shown again.\n", name);
    if (!config->auth && (api_is_loopback(config->listen_address) || config->insecure))
        fputs("With these settings the daemon asks nobody for a token: \"auth\": true\n"
              "makes it.\n",
              stderr);
    return NULL;
}

/* Exit status: 0 fine, 1 the daemon failed, 2 wrong settings or flags. */
int main(int argc, char **argv)
{
    struct config_flags flags = {0};
    bool check_only = false, create_token = false;
    for (int c; (c = getopt_long(argc, argv, "h", options, NULL)) != -1;) {
        switch (c) {
        case OPT_CONFIG:
            flags.file = optarg;
            break;
        case OPT_STATE:
            flags.state_directory = optarg;
            break;
        case OPT_LISTEN:
            flags.listen = optarg;
            break;
        case OPT_SLOTS:
            flags.slots = optarg;
            break;
        case OPT_WORKER:
            flags.worker = optarg;
            break;
        case OPT_CHECK:
            check_only = true;
            break;
        case OPT_TOKEN:
            create_token = true;
            break;
        case OPT_VERSION:
            puts("dllmd " DLLMD_VERSION);
            return 0;
        case 'h':
            print_help();
            return 0;
        default:
            fputs("Try dllmd --help.\n", stderr);
            return 2;
        }
    }
    if (optind < argc) {
        fprintf(stderr, "dllmd: \"%s\" is no option\nTry dllmd --help.\n", argv[optind]);
        return 2;
    }
    struct config config;
    int status = 0;
    struct err *err = config_load(&flags, &config);
    if (err) {
        bool wrong = err_kind(err) != ERR_NO_MEMORY;
        fprintf(stderr, "dllmd: the settings %s:\n%s\n", wrong ? "are wrong" : "cannot be read",
                err_message(err));
        status = wrong ? 2 : 1;
    } else if (check_only) {
        puts("The settings are good.");
    } else if (create_token) {
        err = print_admin_token(&config);
        if (err) {
            fprintf(stderr, "dllmd: %s\n", err_message(err));
            status = 1;
        }
    } else {
        log_set_level(config.log_level);
        journal_open();
        err = daemon_run(&config);
        if (err) {
            log_error("%s", err_message(err));
            status = 1;
        }
    }
    err_free(err);
    config_free(&config);
    return status;
}
