// The last words of ranks. A Bye is answered once it is durable: who is gone then has said it for every life of the
// coordinator, and a job that is done stays done.
//
// Byes that come while a write is on its way go together with the next one. A disk that is full or hangs holds nobody:
// after a while a rank hears that its Bye is not recorded, and leaves.
#ifndef COORDINATOR_ENGINE_RUNS_FAREWELLS_H
#define COORDINATOR_ENGINE_RUNS_FAREWELLS_H

#include "coordinator/engine/base/mind.h"

// The member has said it, and waits at this call.
void gs_farewell_take(gs_engine *engine, gs_member *member, gs_call call);
// What came of a write of the job's record.
void gs_farewells_stored(gs_engine *engine, gs_job *job, const gs_completion *done);
void gs_farewells_tick(gs_engine *engine);

#endif
