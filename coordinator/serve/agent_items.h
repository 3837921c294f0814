// What an agent is told, as an item of its AgentHello stream.
#ifndef COORDINATOR_SERVE_AGENT_ITEMS_H
#define COORDINATOR_SERVE_AGENT_ITEMS_H

#include "coordinator/engine/base/effect.h"
#include "coordinator/model/state.h"
#include "rpc/json/json.h"
#include "rpc/server/key_gate.h"

// `spec`: the full specification of the job whose rank starts.
gs_json *gs_agent_item(const gs_state *state, const gs_key_gate *gate, const gs_effect *effect, gs_json *spec);

#endif
