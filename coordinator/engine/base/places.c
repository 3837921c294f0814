#include "coordinator/engine/base/places.h"

bool gs_place_is_apart(const gs_engine *engine, const gs_member *member) {
    const gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
    return agent && agent->place == GS_PLACE_APART;
}

const gs_member *gs_place_find_apart(const gs_engine *engine, const gs_run *run) {
    for (int i = 0; run && i < run->num_members; i++)
        if (gs_place_is_apart(engine, &run->members[i])) return &run->members[i];
    return NULL;
}
