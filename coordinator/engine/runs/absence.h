// All ranks of a run are gone with their agents: they have ended, or a network is cut, and may have closed their connections
// before. The disk that they share with the coordinator tells which, in two steps. Where nothing was closed, or another life of
// the coordinator had their connections, the first one begins later, and waits until somebody else is heard.
//
// Agents that hear nobody leave a sign of life there each second (worker/agent/lookout.h). While there are new ones nobody is
// replaced. When there are none for a while, the fence is raised above them: whoever lives and sees it ends, and whoever
// sees neither that disk nor a coordinator stands still. So when it has stood for longer than they look, none of them takes
// a step, and others may take their place.
//
// Without an answer of that disk, of a directory whose fence is not these ranks', or of agents that do not look there,
// nothing is known.
#ifndef COORDINATOR_ENGINE_RUNS_ABSENCE_H
#define COORDINATOR_ENGINE_RUNS_ABSENCE_H

#include "coordinator/engine/base/mind.h"

void gs_absences_tick(gs_engine *engine);
// That the disk is going to tell: nobody else decides about ranks none of which is heard.
bool gs_absence_is_told(const gs_engine *engine, const gs_run *run);
void gs_on_life_looked(gs_engine *engine, const gs_completion *done);

#endif
