// The first event of a life of the coordinator: what was stored goes on.
#ifndef COORDINATOR_ENGINE_START_H
#define COORDINATOR_ENGINE_START_H

#include "coordinator/engine/base/mind.h"

void gs_on_start(gs_engine *engine);

#endif
