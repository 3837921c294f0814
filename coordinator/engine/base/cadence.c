#include "coordinator/engine/base/cadence.h"

#include "coordinator/engine/base/orders.h"

#define TOLD_A_TICK 256  // of 10,000 all within a second

static int tell_members(gs_engine *engine, gs_run *run, gs_cadence wanted, int left) {
    for (int i = 0; i < run->num_members && left > 0; i++) {
        gs_member *member = &run->members[i];
        if (!member->stream.call || !member->takes_cadence) continue;
        if (!gs_cadence_differs(member->told, wanted)) continue;
        gs_tell_cadence(engine, member);
        left--;
    }
    return left;
}

void gs_cadence_tick(gs_engine *engine) {
    gs_state *state = &engine->state;
    const gs_cadence wanted = gs_state_cadence(state);
    int left = TOLD_A_TICK;
    for (size_t i = 0; i < state->jobs.count && left > 0; i++) {
        gs_run *run = state->jobs.items[i]->run;
        if (run) left = tell_members(engine, run, wanted, left);
    }
    for (size_t i = 0; i < state->agents.count && left > 0; i++) {
        gs_agent *agent = state->agents.items[i];
        const gs_cadence told = {agent->told_heartbeat_ns, wanted.report_ns};
        if (!gs_agent_is_connected(agent) || !agent->takes_cadence || !gs_cadence_differs(told, wanted)) continue;
        gs_tell_agent_cadence(engine, agent);
        left--;
    }
}
