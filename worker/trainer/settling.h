// After an abort: survivors tell what they hold, and what the coordinator decides of it is done, so
// that each ends at the same step boundary, or at its own when nobody is there to decide. Compute
// thread.
#ifndef WORKER_TRAINER_SETTLING_H
#define WORKER_TRAINER_SETTLING_H

#include "core/status.h"
#include "worker/trainer/run_loop.h"

// What this rank saw, for whoever looks for the cause; not where the generation was ended from
// outside.
void gs_settling_report_fault(gs_run_loop *loop, gs_status why);
// Saves when told to, and when left alone.
void gs_settling_run(gs_run_loop *loop);

#endif
