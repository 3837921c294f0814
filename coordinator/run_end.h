// When the last trainer of a run is gone: what becomes of the job. Loop thread.
#ifndef COORDINATOR_RUN_END_H
#define COORDINATOR_RUN_END_H

#include "coordinator/coordinator.h"
#include "coordinator/run.h"

// Ends every run whose members are all gone and that left nothing behind that is still being looked at:
// decides what becomes of its job, and destroys it. Nobody else may, so a run lives through a turn.
void gs_runs_end_finished(gs_coordinator *coordinator);

#endif
