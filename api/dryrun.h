/* What a job would do, from its resolved spec alone. */
#ifndef API_DRYRUN_H
#define API_DRYRUN_H

#include <cjson/cJSON.h>

#include "api/control.h"
#include "daemon/plan/spec.h"

/* {"world", "ranks": [...], "modes": {...}, "memory_bytes", "memory_available_bytes", "fits",
 * "warnings": [...]} */
struct err *dryrun_plan(const struct job_spec *spec, const struct api_control *control,
                        cJSON **out);

#endif
