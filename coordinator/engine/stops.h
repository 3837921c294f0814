// The end of a job that somebody asks for, or that its deadline asks for.
#ifndef COORDINATOR_ENGINE_STOPS_H
#define COORDINATOR_ENGINE_STOPS_H

#include "coordinator/engine/base/mind.h"

// Graceful drains, now kills. `outcome` is the terminal state to reach; the first one asked for stays.
void gs_job_stop(gs_engine *engine, gs_job *job, bool now, gs_job_state outcome, const char *reason,
                 double grace_seconds);

#endif
