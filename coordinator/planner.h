// The plan of a job: made from the parameters that the ranks agree on, told to them, shown to people.
#ifndef COORDINATOR_PLANNER_H
#define COORDINATOR_PLANNER_H

#include "coordinator/coordinator.h"
#include "coordinator/run.h"

// Fills run->plan, plan_message and plan_hash, and the job's plan; from the list of one of the members.
GS_NODISCARD gs_status gs_planner_make(gs_coordinator *coordinator, gs_run *run,
                                       const gs_param_spec *params, size_t num_params);
// The plan a job of this specification starts with, before any rank runs: {num_buckets, total_bytes,
// hash}; the summary is the caller's. An error for a model that could not be made.
GS_NODISCARD gs_status gs_planner_foresee(gs_json **summary, const gs_job_spec *spec);
// [[name, dtype, [shape…]]…]; the list is the caller's (free()).
GS_NODISCARD gs_status gs_planner_read_params(gs_param_spec **params, size_t *num_params,
                                              const gs_json *list);

void gs_get_job_plan(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request);
void gs_preview_plan(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request);

#endif
