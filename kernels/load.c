#include "kernels/load.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

typedef struct err *(*open_function)(const struct kernels **out);

static struct err *open_plugin(void *library, const char *path, const struct kernels **out)
{
    const int *abi = dlsym(library, "kernels_plugin_abi");
    if (!abi)
        return err_new(ERR_INVALID, "%s is not a plugin of kernels: it has no kernels_plugin_abi",
                       path);
    if (*abi != KERNELS_ABI)
        return err_new(ERR_INVALID,
                       "%s is of another build: kernels ABI %d wanted, %d found; install the one "
                       "of version %s",
                       path, KERNELS_ABI, *abi, DLLMD_VERSION);
    void *symbol = dlsym(library, "kernels_plugin_open");
    if (!symbol)
        return err_new(ERR_INVALID, "%s is not a plugin of kernels: it has no kernels_plugin_open",
                       path);
    open_function open;
    memcpy(&open, &symbol, sizeof open); /* C has no cast from an object to a function */
    struct err *e = open(out);
    return e ? err_wrap(e, "%s", path) : NULL;
}

struct err *kernels_load(const char *path, const struct kernels **out)
{
    if (access(path, F_OK))
        return errno == ENOENT ? err_new(ERR_NOT_FOUND, "%s: the plugin is not installed", path)
                               : err_errno(errno, "%s", path);
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return err_new(ERR_NOT_FOUND, "the plugin cannot be loaded: %s", dlerror());
    struct err *e = open_plugin(library, path, out);
    if (e)
        dlclose(library);
    return e;
}
