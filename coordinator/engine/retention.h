// Ended jobs that are kept: so many, and so long. The others are forgotten as by DELETE; their checkpoints stay.
#ifndef COORDINATOR_ENGINE_RETENTION_H
#define COORDINATOR_ENGINE_RETENTION_H

#include "coordinator/engine/base/mind.h"

// What is left of it.
gs_tombstone gs_job_tombstone(const gs_engine *engine, const gs_job *job);
// Of one that has ended. `call` (0: nobody) is answered when the disk knows it.
void gs_job_delete(gs_engine *engine, gs_job *job, gs_call call, bool purges, gs_forget_reason why);

// The disk has forgotten one for this reason.
void gs_retention_forgot(gs_engine *engine, gs_forget_reason why);
void gs_retention_tick(gs_engine *engine);
// RESOURCE_EXHAUSTED: as many jobs wait and train, have ended and are not forgotten yet, or as many keys are remembered, as may.
GS_NODISCARD gs_status gs_retention_check(gs_engine *engine, bool has_key);

#endif
