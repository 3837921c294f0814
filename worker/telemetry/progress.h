// Where a rank is: what the compute thread shows of itself while it works, for heartbeats and for
// whoever watches over it; and the timeline of what its phases took.
#ifndef WORKER_TELEMETRY_PROGRESS_H
#define WORKER_TELEMETRY_PROGRESS_H

#include <stdatomic.h>
#include <stdint.h>

#include "worker/telemetry/timeline.h"

typedef enum gs_trainer_phase {
    GS_PHASE_IDLE = 0,
    GS_PHASE_DATA,
    GS_PHASE_FORWARD,
    GS_PHASE_BACKWARD,
    GS_PHASE_REDUCE,
    GS_PHASE_COMMIT,
    GS_PHASE_OPTIMIZER,
    GS_PHASE_EVALUATE,
    GS_PHASE_CHECKPOINT,
    GS_NUM_PHASES
} gs_trainer_phase;
const char *gs_trainer_phase_name(gs_trainer_phase phase);

// Written by the compute thread, read by any. {0} is a rank that has not begun.
typedef struct gs_progress {
    _Atomic int64_t applied_step;
    atomic_int phase;
    _Atomic uint64_t plan_digest,
        next_plan_digest;               // folded; of the plan in use, of the one that waits
    _Atomic int64_t plan_step;          // from which the plan in use holds
    _Atomic int64_t teardown_since_ns;  // 0: no communicator is being torn down
    gs_timeline *timeline;  // owned; there before a second thread is; NULL: nothing is kept
} gs_progress;

void gs_progress_release(gs_progress *progress);

// Compute thread.
void gs_progress_enter(gs_progress *progress, gs_trainer_phase phase);
// What began at begin_ns ends now: into the timeline. Its seconds.
double gs_progress_note(const gs_progress *progress, gs_span_kind kind, int64_t begin_ns);

#endif
