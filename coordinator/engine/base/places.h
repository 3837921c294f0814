// Where checkpoints of a job's ranks lie: in this coordinator's directory, or in one of their worker's own.
#ifndef COORDINATOR_ENGINE_BASE_PLACES_H
#define COORDINATOR_ENGINE_BASE_PLACES_H

#include "coordinator/engine/base/mind.h"

// What a worker says of the directory. Nothing (unknown) leaves what is known of it: a disk that is silent for a moment has not moved.
void gs_place_take(gs_engine *engine, gs_agent *agent, gs_agent_place said);
// Behind a hello of an agent that will say it: until it has, or for some seconds, nothing is started there, for who saves and who is given
// its state hangs on it.
void gs_place_await(gs_engine *engine, gs_agent *agent, bool tells_place);
void gs_places_tick(gs_engine *engine);  // whose disk has not answered in time takes ranks without its word
// Tells people, once for a run, of the first worker of it that sees another directory; nothing where none is known.
void gs_place_tell_apart(gs_engine *engine, gs_run *run);

// Its worker has said that it sees another directory, now or at any time since it was launched. False where it has said nothing.
bool gs_place_is_apart(const gs_engine *engine, const gs_member *member);
// The first such member of a run; NULL: there is none, as far as is known.
const gs_member *gs_place_find_apart(const gs_engine *engine, const gs_run *run);

#endif
