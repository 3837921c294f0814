// How often ranks and agents are to be heard follows how many of them there are, at any time.
#ifndef COORDINATOR_ENGINE_BASE_CADENCE_H
#define COORDINATOR_ENGINE_BASE_CADENCE_H

#include "coordinator/engine/base/mind.h"

// Tells those who keep another cadence than there should be now, some at a time.
void gs_cadence_tick(gs_engine *engine);

#endif
