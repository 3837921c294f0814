#include "coordinator/engine/base/places.h"

#include "coordinator/engine/base/moves.h"

bool gs_place_is_apart(const gs_engine *engine, const gs_member *member) {
    const gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
    return member->was_elsewhere || (agent && agent->place == GS_PLACE_APART);
}

const gs_member *gs_place_find_apart(const gs_engine *engine, const gs_run *run) {
    for (int i = 0; run && i < run->num_members; i++)
        if (gs_place_is_apart(engine, &run->members[i])) return &run->members[i];
    return NULL;
}

static bool is_seen_by_any(const gs_engine *engine, const gs_run *run) {
    for (int i = 0; i < run->num_members; i++)
        if (!gs_place_is_apart(engine, &run->members[i])) return true;
    return false;
}

// Whoever has lost a job's steps looks for why, and this is where it began.
void gs_place_tell_apart(gs_engine *engine, gs_run *run) {
    const gs_member *member = gs_place_find_apart(engine, run);
    if (!member || run->told_apart) return;
    run->told_apart = true;
    gs_job *job = run->job;
    gs_note_add(engine, job, member, GS_SEVERITY_WARNING, "CheckpointsNotShared",
                "worker %s on %s has a checkpoint directory of its own, which is not seen here: %s; `gradsync doctor` says what workers see",
                member->worker, member->host,
                is_seen_by_any(engine, run) ? "a rank that sees the coordinator's saves for its ranks, and gives them their state after a restart"
                                            : "no rank of the job sees the coordinator's, so all that it saves is lost to a restart");
}

// What they were told when they were launched was what their worker saw then, and it may not have said so here yet.
static void keep_elsewhere(gs_engine *engine, const gs_agent *agent) {
    const gs_job_table *jobs = &engine->state.jobs;
    for (size_t i = 0; i < jobs->count; i++) {
        gs_run *run = jobs->items[i]->run;
        bool is_there = false;
        for (int m = 0; run && m < run->num_members; m++) {
            gs_member *member = &run->members[m];
            if (!gs_agent_has(agent, member)) continue;
            is_there = member->was_elsewhere = true;
        }
        if (is_there) gs_place_tell_apart(engine, run);
    }
}

void gs_place_take(gs_engine *engine, gs_agent *agent, gs_agent_place said) {
    if (said == GS_PLACE_UNKNOWN) return;
    if (agent->place_due_ns) engine->state.schedule_needed = true;
    agent->place_due_ns = 0;
    if (said == agent->place) return;
    agent->place = said;
    engine->state.schedule_needed = true;
    if (said == GS_PLACE_APART) keep_elsewhere(engine, agent);
}

void gs_place_await(gs_engine *engine, gs_agent *agent, bool tells_place) {
    bool is_open = tells_place && agent->place == GS_PLACE_UNKNOWN;
    agent->place_due_ns = is_open ? engine->state.now_ns + engine->state.timing.tell_place_ns : 0;
}

void gs_places_tick(gs_engine *engine) {
    for (size_t i = 0; i < engine->state.agents.count; i++) {
        gs_agent *agent = engine->state.agents.items[i];
        if (!agent->place_due_ns || engine->state.now_ns < agent->place_due_ns) continue;
        agent->place_due_ns = 0;
        engine->state.schedule_needed = true;
    }
}
