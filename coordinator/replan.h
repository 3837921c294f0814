// Plans that change while ranks train. Loop thread.
//
// Rank 0 tells the order in which gradients come; a settled one, or whatever was told last when an
// operator asks, becomes the order that the job's plans follow. The plan along it, if it is another
// one, goes to all ranks; they change to it together, at a step that they agree on among themselves
// (worker/trainer/plan_switch.h), and say so in their heartbeats. Nothing is kept but the order: whoever
// lost the way (a coordinator that restarted, a rank whose item was dropped) comes to the same plan
// again.
#ifndef COORDINATOR_REPLAN_H
#define COORDINATOR_REPLAN_H

#include "coordinator/coordinator.h"
#include "coordinator/run.h"

// Compares the plan in use with the one that the job's order leads to, and sends that one when it
// differs.
GS_NODISCARD gs_status gs_replan_consider(gs_coordinator *coordinator, gs_run *run);
// What a heartbeat says about plans: a change that has happened, or an item that was lost.
void gs_replan_note(gs_coordinator *coordinator, gs_member *member, const gs_json *heartbeat);
// To a member that says hello again.
void gs_replan_resend(gs_member *member);

void gs_ready_order(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request);
void gs_replan_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                   const gs_json *request);

#endif
