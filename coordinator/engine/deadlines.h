// What time decides of ranks, runs and jobs, at each tick: silence, hangs, phases and jobs that take too long. And what a loop that
// stood still must not decide: every age by which anybody is judged, here or elsewhere, is made younger in one place.
#ifndef COORDINATOR_ENGINE_DEADLINES_H
#define COORDINATOR_ENGINE_DEADLINES_H

#include "coordinator/engine/base/mind.h"

void gs_deadlines_tick(gs_engine *engine);
// The coordinator itself did not run for so long: nobody is to blame for it.
void gs_deadlines_skip(gs_engine *engine, int64_t skipped_ns);

#endif
