#include "daemon/worker/backend.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/load.h"

/* From the directory of this program: installed beside it or in its library's directory, or as it
 * was built. */
static const char *const places[] = {"libdllm-cuda.so", "../../lib/dllmd/libdllm-cuda.so",
                                     "../../kernels/libdllm-cuda.so"};

/* directory [PATH_MAX]: of the running program, with a / behind it. */
static struct err *own_directory(char *directory)
{
    ssize_t n = readlink("/proc/self/exe", directory, PATH_MAX - 1);
    if (n < 0)
        return err_errno(errno, "/proc/self/exe");
    directory[n] = '\0';
    strrchr(directory, '/')[1] = '\0';
    return NULL;
}

static struct err *open_plugin(const struct kernels **out)
{
    char directory[PATH_MAX], path[PATH_MAX + 64];
    TRY(own_directory(directory));
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s%s", directory, places[i]);
        if (access(path, F_OK))
            continue;
        TRY(kernels_load(path, out));
        return (*out)->attention_forward
                   ? NULL
                   : err_new(ERR_INVALID, "%s has no attention: it cannot train", path);
    }
    return err_new(ERR_NOT_FOUND, "the plugin libdllm-cuda.so is not installed beside %s",
                   directory);
}

struct err *backend_open(const struct job_spec *spec, const struct kernels **kernels,
                         enum dtype *dtype)
{
    *kernels = kernels_cpu();
    *dtype = spec_dtype_bytes(spec) == 2 ? DTYPE_BF16 : DTYPE_F32;
    return spec->device == SPEC_DEVICE_CUDA ? open_plugin(kernels) : NULL;
}
