// An operator's word about trainers that run here and that nobody here knows: their job becomes one of this cluster.
//
// Their agents are asked what they run. Where all ranks of the newest generation are there, they are this job's from now
// on and train on; where some are not, those that are save and end, and the job starts from its newest checkpoint. Its
// next generation is one that the other coordinator does not come to.
#ifndef COORDINATOR_ENGINE_ADOPTION_H
#define COORDINATOR_ENGINE_ADOPTION_H

#include "coordinator/engine/base/mind.h"

void gs_on_adopt_job(gs_engine *engine, gs_engine_event *event);
void gs_on_described(gs_engine *engine, gs_engine_event *event);
void gs_adoptions_tick(gs_engine *engine);
void gs_adoptions_release(gs_engine *engine);

#endif
