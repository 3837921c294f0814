// What ranks report of their steps: kept for the job, written down, told to who watches, shown to who asks.
#ifndef COORDINATOR_OBSERVE_RANK_REPORTS_H
#define COORDINATOR_OBSERVE_RANK_REPORTS_H

#include "coordinator/observe/observer.h"
#include "rpc/schema/step_report.h"

// A Step of a member that was admitted: kept before what it leads to is shown, told to who watches behind that.
void gs_rank_reports_keep(gs_observer *observer, const gs_member *member, const gs_step_report *report);
void gs_rank_reports_tell(gs_observer *observer, const gs_member *member, const gs_step_report *report);

void gs_get_job_metrics(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);
void gs_get_job_series(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);

#endif
