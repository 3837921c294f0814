#include "worker/trainer/lr_schedule.h"

#include <math.h>

double gs_lr_at(const gs_lr_schedule *schedule, int64_t step) {
    if (step < 0) step = 0;
    if (step < schedule->warmup_steps)
        return schedule->peak * (double)(step + 1) / (double)schedule->warmup_steps;
    if (schedule->kind == GS_LR_CONSTANT) return schedule->peak;

    double least = schedule->peak * schedule->final_ratio;
    if (step >= schedule->total_steps) return least;
    // Here warmup_steps ≤ step < total_steps, so the division is safe.
    double progress = (double)(step - schedule->warmup_steps) /
                      (double)(schedule->total_steps - schedule->warmup_steps);
    double left = schedule->kind == GS_LR_LINEAR
                      ? 1.0 - progress
                      : 0.5 * (1.0 + cos(3.14159265358979323846 * progress));
    return least + (schedule->peak - least) * left;
}
