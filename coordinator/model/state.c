#include "coordinator/model/state.h"

gs_member *gs_state_member(const gs_state *state, uint64_t incarnation) {
    return incarnation ? gs_u64_map_get(&state->members, incarnation) : NULL;
}

gs_cadence gs_state_cadence(const gs_state *state) {
    return gs_timing_cadence(&state->timing, state->agents.count, state->members.count);
}

bool gs_state_has_turn(const gs_state *state, const gs_job *job) {
    return (job->id + state->num_ticks) % gs_timing_turns(&state->timing, state->members.count) == 0;
}
