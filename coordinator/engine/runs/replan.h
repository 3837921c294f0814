// Plans that change while ranks train.
//
// Rank 0 tells the order in which gradients come; a settled one, or whatever was told last when an
// operator asks, becomes the order that the job's plans follow. The plan along it, if it is another
// one, goes to all ranks; they change to it together, at a step that they agree on among themselves
// (worker/trainer/plan_switch.h), and say so in their heartbeats. Nothing is kept but the order: whoever
// lost the way (a coordinator that restarted, a rank whose item was dropped) comes to the same plan
// again.
#ifndef COORDINATOR_ENGINE_RUNS_REPLAN_H
#define COORDINATOR_ENGINE_RUNS_REPLAN_H

#include "coordinator/engine/base/mind.h"

// Compares the plan in use with the one that the job's order leads to, and sends that one when it
// differs.
GS_NODISCARD gs_status gs_replan_consider(gs_engine *engine, gs_run *run);
// What a rank says about plans: a change that has happened, or an item that was lost. `generation` is that which the
// message names.
void gs_replan_note(gs_engine *engine, gs_member *member, int64_t generation, const gs_plan_report *report);
// To a member that says hello again.
void gs_replan_resend(gs_engine *engine, gs_member *member);

void gs_on_ready_order(gs_engine *engine, gs_member *member, gs_engine_event *event);
// What an operator asked for: the job follows the order that was observed last.
GS_NODISCARD gs_status gs_replan_by_operator(gs_engine *engine, gs_job *job);

// A plan that no message holds: training goes on with the one that it has.
void gs_replan_refuse(gs_engine *engine, gs_run *run, const char *why);

#endif
