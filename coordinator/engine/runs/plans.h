// The plan of a job: made from the parameters that the ranks agree on and the order in which their gradients
// come. What makes it change while ranks train is replan.h.
#ifndef COORDINATOR_ENGINE_RUNS_PLANS_H
#define COORDINATOR_ENGINE_RUNS_PLANS_H

#include "coordinator/engine/base/mind.h"
#include "rpc/schema/job_plan.h"

// Fills run->plan and plan_hash, and the job's plan; from the list of one of the members.
GS_NODISCARD gs_status gs_plan_make(gs_engine *engine, gs_run *run, const gs_param_spec *params, size_t num_params);
// The plan along the order that the job follows, and what is known of it as its next one.
GS_NODISCARD gs_status gs_plan_of_order(gs_bucket_plan *out, gs_plan_facts *facts, const gs_run *run,
                                        const gs_param_spec *params, size_t num_params);
// It is in use from now on.
void gs_plan_adopt(gs_engine *engine, gs_job *job, const gs_plan_facts *facts, const gs_bucket_plan *plan,
                   const gs_param_spec *params, size_t num_params);
// Where the ranks of a run are, with what `link` tells of what is between them, if they are apart.
gs_plan_place gs_plan_place_of(const gs_run *run, const gs_link_report *link, size_t num_params);
uint64_t gs_plan_fold_hash(const char *hash);  // 0: it is none

#endif
