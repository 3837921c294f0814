// Where checkpoints of a job's ranks lie: in this coordinator's directory, or in one of their worker's own.
#ifndef COORDINATOR_ENGINE_BASE_PLACES_H
#define COORDINATOR_ENGINE_BASE_PLACES_H

#include "coordinator/engine/base/mind.h"

// Its worker has said that it sees another directory. False where it has said nothing.
bool gs_place_is_apart(const gs_engine *engine, const gs_member *member);
// The first such member of a run; NULL: there is none, as far as is known.
const gs_member *gs_place_find_apart(const gs_engine *engine, const gs_run *run);

#endif
