/* Where a job can run: its device, and whether its ranks fit on this node. */
#ifndef API_PLACE_H
#define API_PLACE_H

#include "api/control.h"
#include "daemon/base/err.h"
#include "daemon/plan/problems.h"
#include "daemon/plan/spec.h"

/* Resolves device, precision and parallel where they are "auto"; what cannot be, or cannot be
 * planned, becomes a problem. */
void place_check(const struct api_control *control, struct job_spec *spec,
                 struct problems *problems);
/* Memory that the job's ranks need at once. */
struct err *place_need(const struct job_spec *spec, size_t *bytes);
/* Memory of this node that jobs on CPUs may take: a sixteenth is left for what estimates leave out
 * and for the system. */
size_t place_room(const struct api_control *control);
/* A problem where a job that passed place_check() needs more than that. Jobs on GPUs pass: their
 * memory is not known here. */
void place_fit(const struct api_control *control, const struct job_spec *spec,
               struct problems *problems);

#endif
