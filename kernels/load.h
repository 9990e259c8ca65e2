/* Backends that are plugins: shared objects, opened at run time, so that a program needs none of
 * their libraries to be linked or to start.
 *
 * A plugin has two symbols. kernels_plugin_abi is the KERNELS_ABI it was built with; what else it
 * has is looked at only if that is ours. kernels_plugin_open gives its table, or says why the
 * backend does not work on this machine. Errors are made by the program (err.h) on both sides: a
 * program that loads plugins exports its symbols to them.
 */
#ifndef KERNELS_LOAD_H
#define KERNELS_LOAD_H

#include "kernels/kernels.h"

#define KERNELS_PLUGIN_SYMBOL __attribute__((visibility("default")))

extern const int kernels_plugin_abi;
struct err *kernels_plugin_open(const struct kernels **out);

/* The table lives as long as the process: a plugin is never closed. ERR_NOT_FOUND: there is no such
 * file, or what the plugin needs is not there; ERR_INVALID: it is no plugin of this ABI. */
struct err *kernels_load(const char *path, const struct kernels **out);

#endif
