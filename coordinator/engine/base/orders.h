// What ranks and agents are told. Whoever is not connected is told nothing: it is owed the state when it is back.
#ifndef COORDINATOR_ENGINE_BASE_ORDERS_H
#define COORDINATOR_ENGINE_BASE_ORDERS_H

#include "coordinator/engine/base/mind.h"

void gs_tell_welcome(gs_engine *engine, gs_member *member, bool send_params);
void gs_tell_prepare(gs_engine *engine, gs_member *member);
void gs_tell_start(gs_engine *engine, gs_member *member);
void gs_tell_go(gs_engine *engine, gs_member *member);
void gs_tell_abort(gs_engine *engine, gs_member *member);
void gs_tell_drain(gs_engine *engine, gs_member *member);
void gs_tell_replan(gs_engine *engine, gs_member *member, const gs_bucket_plan *plan, const gs_plan_facts *facts);
// How often it is to be heard from now on.
void gs_tell_cadence(gs_engine *engine, gs_member *member);

void gs_tell_agent_welcome(gs_engine *engine, gs_agent *agent);
void gs_tell_agent_cadence(gs_engine *engine, gs_agent *agent);
// Takes the slot and tells the agent. False when nobody is there to be told.
bool gs_order_start_rank(gs_engine *engine, gs_agent *agent, gs_member *member);
// Tells the agent of the member, when it is there, to end it.
void gs_order_stop_rank(gs_engine *engine, gs_member *member, bool kill, double grace_seconds);
// To say what runs there, and that it is ours from now on.
void gs_order_describe_slot(gs_engine *engine, gs_agent *agent, int slot);
void gs_order_adopt_slot(gs_engine *engine, gs_agent *agent, int slot);
void gs_order_stop_slot(gs_engine *engine, gs_agent *agent, int slot, uint64_t incarnation, bool kill,
                        double grace_seconds);

#endif
