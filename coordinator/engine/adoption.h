// An operator's word about trainers that run here and that nobody here knows: their job becomes one of this cluster.
//
// Their agents are asked what they run. Where all ranks of the newest generation are there, they are this job's from now
// on and train on; where some are not, those that are save and end, and the job starts from its newest checkpoint. Its
// next generation is one that the other coordinator does not come to. Nobody is told before the job is durable: the other
// coordinator gives it up as soon as it hears of it.
#ifndef COORDINATOR_ENGINE_ADOPTION_H
#define COORDINATOR_ENGINE_ADOPTION_H

#include "coordinator/engine/base/mind.h"

void gs_on_adopt_job(gs_engine *engine, gs_engine_event *event);
void gs_on_described(gs_engine *engine, gs_engine_event *event);
// The job is durable: its trainers are told, and its run begins. An error: it stays as it is, for this coordinator ends.
GS_NODISCARD gs_status gs_adoption_stored(gs_engine *engine, gs_job *job);
void gs_adoptions_tick(gs_engine *engine);
void gs_adoptions_skip(gs_engine *engine, int64_t skipped_ns);  // the loop stood still so long, and has heard nobody
void gs_adoptions_release(gs_engine *engine);

#endif
