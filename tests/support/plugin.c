/* Plugins of kernels for the tests of loading, by what PLUGIN_ABI and PLUGIN_REFUSES are. */
#include "kernels/load.h"

KERNELS_PLUGIN_SYMBOL const int kernels_plugin_abi = PLUGIN_ABI;

KERNELS_PLUGIN_SYMBOL struct err *kernels_plugin_open(const struct kernels **out)
{
    if (PLUGIN_REFUSES)
        return err_new(ERR_NOT_FOUND, "this backend needs a device that is not there");
    static const struct kernels table = {.abi = KERNELS_ABI, .name = "plugin"};
    *out = &table;
    return NULL;
}
