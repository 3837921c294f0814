// The plan of a job: made from the parameters that the ranks agree on and the order in which their gradients
// come, told to them, shown to people. What makes it change while ranks train is replan.h.
#ifndef COORDINATOR_PLANNER_H
#define COORDINATOR_PLANNER_H

#include "coordinator/coordinator.h"
#include "coordinator/run.h"

// Fills run->plan, plan_message and plan_hash, and the job's plan; from the list of one of the members.
GS_NODISCARD gs_status gs_planner_make(gs_coordinator *coordinator, gs_run *run,
                                       const gs_param_spec *params, size_t num_params);
// The plan a job of this specification starts with, before any rank runs: {num_buckets, total_bytes,
// total_wire_bytes, hash}, and what its ranks hold in memory (gs_job_memory_to_json); both are the caller's. An error
// for a model that could not be made.
GS_NODISCARD gs_status gs_planner_foresee(gs_json **summary, gs_json **memory,
                                          const gs_job_spec *spec);
// The plan of parameters in a world along `order` ([param…]); NULL: none is known.
GS_NODISCARD gs_status gs_planner_assign(gs_bucket_plan *out, const gs_job_spec *spec, int world_size,
                                         const gs_param_spec *params, size_t num_params,
                                         const gs_json *order);
// How buckets travel among the members that there are.
gs_hook_rule gs_planner_hook_rule(const gs_run *run);
// What a plan that is made now is made from: "size_based", "one_host", "owner_based", "ready_order",
// "operator".
const char *gs_planner_reason(const gs_job *job);
// `view` (taken) is in use from now on: it enters the history.
void gs_planner_adopt(gs_coordinator *coordinator, gs_job *job, gs_json *view);

// [param…], each of num_params once; the list is the caller's (free()).
GS_NODISCARD gs_status gs_planner_read_order(size_t **out, const gs_json *order, size_t num_params);

void gs_get_job_plan(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request);

#endif
