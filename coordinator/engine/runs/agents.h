// Agents come, are lost, come back, and tell what ran and what ended.
#ifndef COORDINATOR_ENGINE_RUNS_AGENTS_H
#define COORDINATOR_ENGINE_RUNS_AGENTS_H

#include "coordinator/engine/base/mind.h"

void gs_on_agent_hello(gs_engine *engine, gs_engine_event *event);
void gs_on_agent_heartbeat(gs_engine *engine, const gs_engine_event *event);
void gs_on_exited(gs_engine *engine, gs_engine_event *event);
void gs_agent_stream_gone(gs_engine *engine, gs_agent *agent, bool was_closed);
// Those that stay away are lost, and with them what nobody else proves alive.
void gs_agents_tick(gs_engine *engine);

#endif
