#include "coordinator/model/state.h"

#include "core/clock.h"

#define HEARTBEATS_PER_SEC 10000  // of all agents and members together

gs_member *gs_state_member(const gs_state *state, uint64_t incarnation) {
    return incarnation ? gs_u64_map_get(&state->members, incarnation) : NULL;
}

int64_t gs_state_heartbeat_ns(const gs_state *state) {
    int64_t heard = (int64_t)(state->agents.count + state->members.count);
    int64_t stretched_ns = heard * (GS_NS_PER_SEC / HEARTBEATS_PER_SEC);
    return stretched_ns > state->timing.heartbeat_ns ? stretched_ns : state->timing.heartbeat_ns;
}
