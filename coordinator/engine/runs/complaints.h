// Who could not work together with whom, as ranks report it: kept behind the end of a generation, for where the next one's ranks
// are placed (rules/avoidance.h).
#ifndef COORDINATOR_ENGINE_RUNS_COMPLAINTS_H
#define COORDINATOR_ENGINE_RUNS_COMPLAINTS_H

#include "coordinator/engine/base/mind.h"

// What somebody has reported, of the generation that lives; `seen` is bounded to its ranks and says who saw it.
void gs_complaints_take(gs_run *run, const gs_fault_facts *seen);
// The run is over and has failed: what its ranks complained about is its job's from now on.
void gs_complaints_keep(const gs_engine *engine, const gs_run *run);

#endif
