// What was asked of the disk and is done, as an event.
#ifndef COORDINATOR_SERVE_COMPLETIONS_H
#define COORDINATOR_SERVE_COMPLETIONS_H

#include "coordinator/engine/base/event.h"
#include "coordinator/store/work.h"

// The event points into the work, and takes what it found. GS_ON_NOTHING: nobody waits for it.
void gs_completion_of(gs_engine_event *event, gs_work *work);

#endif
