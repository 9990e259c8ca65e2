/* Where a job can run: its device, and whether its ranks fit on this node. */
#ifndef API_PLACE_H
#define API_PLACE_H

#include "api/control.h"
#include "daemon/plan/problems.h"
#include "daemon/plan/spec.h"

/* Resolves device and parallel where they are "auto"; what cannot be becomes a problem. */
void place_check(const struct api_control *control, struct job_spec *spec,
                 struct problems *problems);

#endif
