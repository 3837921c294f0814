// What all passes of a session work with, whichever replica runs them.
#ifndef WORKER_PASS_PASS_CONTEXT_H
#define WORKER_PASS_PASS_CONTEXT_H

#include "core/bucket_plan.h"
#include "core/clock.h"
#include "gradsync/comm/comm.h"
#include "gradsync/reducer/reducer.h"
#include "gradsync/step/batch_sync.h"
#include "worker/pass/backward_update.h"
#include "worker/pass/embedding_rows.h"
#include "worker/pass/frozen_params.h"
#include "worker/state/sharding.h"
#include "worker/state/trainer_state.h"
#include "worker/telemetry/progress.h"

// A batch that is not there after this long is a broken disk.
#define GS_BATCH_SECONDS 120.0

// A value, which borrows all that it points to.
typedef struct gs_pass_context {
    const gs_position *position;  // of the open step
    const gs_bucket_plan *plan;   // in use
    gs_comm *comm;
    gs_reducer *reducer;
    gs_embedding_rows *embedding_rows;  // NULL: gradients are dense
    gs_frozen_params *frozen;           // NULL: all train
    gs_batch_sync *batch_sync;          // NULL: no statistics over ranks
    gs_backward_update *update;         // NULL: the optimizer steps behind the commit
    gs_sharding *sharding;              // NULL: all parameters are here when a step begins
    gs_progress *progress;
    int losses_per_pass;     // that one pass stands for
    double timeout_seconds;  // of a collective
} gs_pass_context;

// How long a collective that is posted now may take.
static inline gs_deadline gs_pass_context_deadline(const gs_pass_context *context) {
    return gs_deadline_in_seconds(context->timeout_seconds);
}

#endif
