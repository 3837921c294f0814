// Ranks that the coordinator does not hear while their generation steps: a step that is newer than a rank's last word was not made
// without it, so it lives, and its way here is cut or its control thread stands. It is left alone (deadlines.c); people are shown
// it, and told once when that begins in a run and once when all of them are heard again.
#ifndef COORDINATOR_ENGINE_RUNS_CONTROL_PATH_H
#define COORDINATOR_ENGINE_RUNS_CONTROL_PATH_H

#include "coordinator/engine/base/mind.h"

void gs_control_paths_tick(gs_engine *engine);

#endif
