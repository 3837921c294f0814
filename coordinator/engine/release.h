// An operator's word about trainers that nobody here hears, or that nobody here knows.
#ifndef COORDINATOR_ENGINE_RELEASE_H
#define COORDINATOR_ENGINE_RELEASE_H

#include "coordinator/engine/base/mind.h"

// Ranks that are out of reach count as gone: their job goes on without waiting for the orphan limit. How many.
int gs_release_members(gs_engine *engine, gs_run *run);
// It leaves this run one that has failed: somebody is out of reach, and missed. Else the others train on.
bool gs_release_fails(const gs_engine *engine, const gs_run *run);
// Trainers of a job that is not known here, by its number, are asked to save and end; those of a worker that is away
// are forgotten. How many.
int gs_release_unknown(gs_engine *engine, uint64_t job);

#endif
