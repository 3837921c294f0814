// What becomes of a job when the last trainer of its run is gone.
#ifndef COORDINATOR_ENGINE_RUNS_RUN_END_H
#define COORDINATOR_ENGINE_RUNS_RUN_END_H

#include "coordinator/engine/base/mind.h"

void gs_runs_end_finished(gs_engine *engine);

#endif
