// The learning rate of a step: constant, linear, cosine; each with linear warm-up. A pure function.
#ifndef WORKER_TRAINER_LR_SCHEDULE_H
#define WORKER_TRAINER_LR_SCHEDULE_H

#include <stdint.h>

typedef enum gs_lr_kind { GS_LR_CONSTANT = 0, GS_LR_LINEAR, GS_LR_COSINE } gs_lr_kind;

typedef struct gs_lr_schedule {
    gs_lr_kind kind;
    double peak;
    int64_t warmup_steps, total_steps;
    double final_ratio;  // of the peak, reached at total_steps; linear and cosine
} gs_lr_schedule;

// Of step `step`, counted from 0. Warm-up: peak · (step + 1) / warmup_steps.
double gs_lr_at(const gs_lr_schedule *schedule, int64_t step);

#endif
