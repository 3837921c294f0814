// Steps that one rank tells of and the others do not come to. All ranks of a generation enter the commit of a step together, so
// none is ahead of the others by more than one: what is further is no step, and whoever tells it is not believed again. Nor is who
// trains alone and goes on from a step that is behind what it told. Of a step that an earlier life of the coordinator was told, and
// that no rank confirms, nobody knows who told it: it is forgotten, and the generation goes on.
#ifndef COORDINATOR_ENGINE_RUNS_CLAIMS_H
#define COORDINATOR_ENGINE_RUNS_CLAIMS_H

#include "coordinator/engine/base/mind.h"

// Beyond the job's target nobody has to be heard besides. False: its generation has been ended by it, or by what it told before.
bool gs_claim_is_possible(gs_engine *engine, gs_member *member, int64_t applied_step);
// Of a run that trains: others may be late with what they tell, but not for ever.
void gs_claims_check(gs_engine *engine, gs_run *run);

#endif
