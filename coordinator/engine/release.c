#include "coordinator/engine/release.h"

#include "coordinator/engine/base/orders.h"
#include "coordinator/engine/runs/run_life.h"
#include "core/clock.h"

static bool is_out_of_reach(const gs_engine *engine, const gs_member *member) {
    const gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
    return member->stage != GS_MEMBER_EXITED && !member->stream.call && !(agent && gs_agent_is_connected(agent));
}

bool gs_release_fails(const gs_engine *engine, const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        bool is_missed = member->stage != GS_MEMBER_LEAVING || run->cause.set;
        if (is_missed && is_out_of_reach(engine, member)) return true;
    }
    return false;
}

int gs_release_members(gs_engine *engine, gs_run *run) {
    int count = 0;
    bool has_failed = false;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!is_out_of_reach(engine, member)) continue;
        count++;
        // Who has said Bye is missed by nobody.
        if (member->stage != GS_MEMBER_LEAVING && !has_failed) {
            has_failed = true;
            gs_blame blame = {.kind = GS_FAILURE_LOST, .member = member, .reason = "Released",
                              .class = "infrastructure", .fault = GS_FAULT_PEER_LOST};
            gs_run_fail(engine, run, &blame, "rank %d on worker %s is out of reach, and an operator has given it up", i,
                        member->worker);
        }
        gs_member_exited(engine, member, -1, 0, NULL);
    }
    return count;
}

static int release_unknown_of(gs_engine *engine, gs_agent *agent, uint64_t job) {
    int count = 0;
    for (int i = 0; i < agent->num_slots; i++) {
        gs_agent_slot *slot = &agent->slots[i];
        if (!slot->is_unknown || slot->job != job) continue;
        count++;
        if (gs_agent_is_connected(agent))
            gs_order_stop_slot(engine, agent, i, slot->incarnation, false,
                               (double)engine->state.timing.save_ns / GS_NS_PER_SEC);
        else *slot = (gs_agent_slot){0};
    }
    return count;
}

int gs_release_unknown(gs_engine *engine, uint64_t job) {
    int count = 0;
    for (size_t i = 0; i < engine->state.agents.count; i++)
        count += release_unknown_of(engine, engine->state.agents.items[i], job);
    return count;
}
