#include "daemon/worker/optim/schedule.h"

#include <math.h>

#define PI 3.14159265358979323846

float schedule_lr(const struct job_spec *spec, int64_t step)
{
    double lr = spec->optimizer.lr, least = spec->schedule.min_lr;
    int64_t warmup = spec->schedule.warmup_steps;
    if (step <= warmup)
        return (float)(lr * (double)step / (double)warmup);
    int64_t rest = spec->steps - warmup;
    double done = rest > 0 ? (double)(step - warmup) / (double)rest : 1.0;
    switch (spec->schedule.type) {
    case SCHEDULE_CONSTANT:
        return (float)lr;
    case SCHEDULE_LINEAR:
        return (float)(lr + (least - lr) * done);
    case SCHEDULE_COSINE:
        return (float)(least + (lr - least) * 0.5 * (1.0 + cos(PI * done)));
    }
    return (float)lr;
}
