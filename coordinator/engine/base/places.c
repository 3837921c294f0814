#include "coordinator/engine/base/places.h"

#include <string.h>

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

// Whoever has lost a job's steps looks for why, and this is where it began.
void gs_place_tell_apart(gs_engine *engine, gs_run *run) {
    const gs_member *member = gs_place_find_apart(engine, run);
    if (!member || run->told_apart) return;
    run->told_apart = true;
    gs_job *job = run->job;
    bool by_all = job->spec.checkpoint.parts == GS_CHECKPOINT_PARTS_RANKS || job->spec.reducer.sharding != GS_SHARDING_NONE;
    bool is_first = gs_place_is_apart(engine, &run->members[0]);
    gs_note_add(engine, job, member, GS_SEVERITY_WARNING, "CheckpointsNotShared",
                "worker %s on %s has a checkpoint directory of its own, which is not seen here: %s; `gradsync doctor` says what workers see",
                member->worker, member->host,
                by_all     ? "parts that its ranks write are missing in every checkpoint, so a restart goes back to the beginning"
                : is_first ? "what rank 0 saves there is lost to a restart"
                           : "its ranks get the state from rank 0 after a restart");
}

// What they were told when they were launched was what their worker saw then, and it may not have said so here yet.
static void keep_elsewhere(gs_engine *engine, const gs_agent *agent) {
    const gs_job_table *jobs = &engine->state.jobs;
    for (size_t i = 0; i < jobs->count; i++) {
        gs_run *run = jobs->items[i]->run;
        bool is_there = false;
        for (int m = 0; run && m < run->num_members; m++) {
            gs_member *member = &run->members[m];
            if (member->stage == GS_MEMBER_EXITED || strcmp(member->worker, agent->name) != 0) continue;
            is_there = member->was_elsewhere = true;
        }
        if (is_there) gs_place_tell_apart(engine, run);
    }
}

void gs_place_take(gs_engine *engine, gs_agent *agent, gs_agent_place said) {
    if (said == GS_PLACE_UNKNOWN || said == agent->place) return;
    agent->place = said;
    if (said == GS_PLACE_APART) keep_elsewhere(engine, agent);
}
