/* write_model CONFIG DIRECTORY [SEED [SHARDS [DTYPE]]]: the file CONFIG becomes DIRECTORY's
 * config.json, with random weights beside it. DTYPE: F32, BF16, F16 or mixed. */
#include <stdio.h>
#include <stdlib.h>

#include "daemon/base/file.h"
#include "tests/support/model_files.h"

int main(int argc, char **argv)
{
    char *config;
    size_t bytes;
    if (argc < 3 || argc > 6) {
        fputs("usage: write_model CONFIG DIRECTORY [SEED [SHARDS [DTYPE]]]\n", stderr);
        return 2;
    }
    struct err *e = file_read(argv[1], 1 << 20, &config, &bytes);
    if (!e) {
        const struct model_files m = {
            .directory = argv[2],
            .config = config,
            .seed = argc > 3 ? strtoul(argv[3], NULL, 10) : 1,
            .shards = argc > 4 ? atoi(argv[4]) : 1,
            .dtype = argc > 5 ? argv[5] : "BF16",
        };
        e = model_files_write(&m);
        free(config);
    }
    if (e)
        fprintf(stderr, "write_model: %s\n", err_message(e));
    err_free(e);
    return e ? EXIT_FAILURE : EXIT_SUCCESS;
}
