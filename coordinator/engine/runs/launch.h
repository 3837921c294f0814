// From a waiting job to trainers being started on free slots.
#ifndef COORDINATOR_ENGINE_RUNS_LAUNCH_H
#define COORDINATOR_ENGINE_RUNS_LAUNCH_H

#include "coordinator/engine/base/mind.h"

// Looks at every waiting job: starts what can start, says of the rest what it waits for.
void gs_launch_waiting(gs_engine *engine);
// An order that no message holds: the job cannot start, and no rank is to blame.
void gs_on_too_large(gs_engine *engine, const gs_engine_event *event);

#endif
