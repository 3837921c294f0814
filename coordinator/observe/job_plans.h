// The plan of a job as people are shown it, and those that it had before.
#ifndef COORDINATOR_OBSERVE_JOB_PLANS_H
#define COORDINATOR_OBSERVE_JOB_PLANS_H

#include "coordinator/engine/base/effect.h"
#include "coordinator/observe/observer.h"

// A GS_DO_SHOW_PLAN.
void gs_job_plans_see(const gs_effect *effect);

void gs_get_job_plan(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);

#endif
