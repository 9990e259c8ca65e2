/* Learning rate by step: linear warm-up, then constant, linear or cosine to min_lr. Pure. */
#ifndef WORKER_SCHEDULE_H
#define WORKER_SCHEDULE_H

#include "daemon/plan/spec.h"

/* step counts from 1; the last step (spec->steps) is at min_lr unless the schedule is constant. */
float schedule_lr(const struct job_spec *spec, int64_t step);

#endif
