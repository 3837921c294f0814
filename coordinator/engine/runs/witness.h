// A worker that is gone may have ended, or a network be cut. Another worker of its host is asked, without a word: it is heard.
#ifndef COORDINATOR_ENGINE_RUNS_WITNESS_H
#define COORDINATOR_ENGINE_RUNS_WITNESS_H

#include "coordinator/engine/base/mind.h"

// Who lived there would be heard, as another is. No proof: a network may treat two workers of one host differently.
bool gs_witness_of_end(const gs_engine *engine, const gs_agent *agent);

#endif
