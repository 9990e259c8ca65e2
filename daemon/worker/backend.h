/* What computes a job: the backend of its device, opened by this process, and the dtype of its
 * precision. */
#ifndef WORKER_BACKEND_H
#define WORKER_BACKEND_H

#include "daemon/base/err.h"
#include "daemon/plan/spec.h"
#include "kernels/kernels.h"

/* For cuda the plugin libdllm-cuda.so that lies with this program is opened; ERR_NOT_FOUND where
 * there is none, or no driver or GPU for it. */
struct err *backend_open(const struct job_spec *spec, const struct kernels **kernels,
                         enum dtype *dtype);

#endif
