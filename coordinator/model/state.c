#include "coordinator/model/state.h"

gs_member *gs_state_member(const gs_state *state, uint64_t incarnation) {
    return incarnation ? gs_u64_map_get(&state->members, incarnation) : NULL;
}

gs_cadence gs_state_cadence(const gs_state *state) {
    return gs_timing_cadence(&state->timing, state->agents.count, state->members.count);
}
