// What a rank is told, as an item of its Hello stream.
#ifndef COORDINATOR_SERVE_MEMBER_ITEMS_H
#define COORDINATOR_SERVE_MEMBER_ITEMS_H

#include "coordinator/engine/base/effect.h"
#include "coordinator/model/state.h"
#include "rpc/json/json.h"
#include "rpc/server/key_gate.h"

// `plan`: message->plan encoded by gs_member_plan; NULL where the message has none.
gs_json *gs_member_item(const gs_state *state, const gs_key_gate *gate, const gs_effect *effect, gs_json *plan);
gs_json *gs_member_plan(const gs_member_message *message);

#endif
