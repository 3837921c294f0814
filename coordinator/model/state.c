#include "coordinator/model/state.h"

#define BEATS_TO_DEATH 15  // where heartbeats are stretched

gs_member *gs_state_member(const gs_state *state, uint64_t incarnation) {
    return incarnation ? gs_u64_map_get(&state->members, incarnation) : NULL;
}

gs_cadence gs_state_cadence(const gs_state *state) {
    return gs_timing_cadence(&state->timing, state->agents.count, state->members.count);
}

int64_t gs_state_dead_ns(const gs_state *state, int64_t beat_ns) {
    // Who has not come back to this life of the coordinator keeps what an earlier one told it.
    if (!beat_ns) beat_ns = gs_state_cadence(state).heartbeat_ns;
    int64_t stretched_ns = BEATS_TO_DEATH * beat_ns;
    return state->timing.dead_ns > stretched_ns ? state->timing.dead_ns : stretched_ns;
}

bool gs_state_has_turn(const gs_state *state, const gs_job *job) {
    return (job->id + state->num_ticks) % gs_timing_turns(&state->timing, state->members.count) == 0;
}
