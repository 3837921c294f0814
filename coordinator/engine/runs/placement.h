// On which slots a job's ranks start: spread over workers, rank 0 where checkpoints are seen, and behind complaints elsewhere if
// there is an elsewhere.
#ifndef COORDINATOR_ENGINE_RUNS_PLACEMENT_H
#define COORDINATOR_ENGINE_RUNS_PLACEMENT_H

#include "coordinator/engine/base/mind.h"
#include "coordinator/rules/scheduler.h"

// Free slots of all workers that this job's complaints say nothing against.
gs_slot_pools gs_placement_unblamed(const gs_engine *engine, const gs_job *job);
// Where its ranks were put on slots of `free`, one of them would see the coordinator's checkpoints.
bool gs_placement_sees_checkpoint(const gs_engine *engine, const gs_job *job, const gs_schedule_job *decision, gs_slot_pools free);
// The job's next run, not told to anybody.
gs_run *gs_placement_make_run(gs_engine *engine, gs_job *job, const gs_schedule_job *decision, gs_slot_pools free);

#endif
