#include "coordinator/engine/runs/witness.h"

#include <string.h>

// It is on the same host, has been heard all the while, and goes by the same network: who lives there would be back. A network may
// treat two workers of one host differently all the same, so it is heard only where nothing else can tell, or where it does no harm.
static bool is_witness(const gs_engine *engine, const gs_agent *agent, const gs_agent *other) {
    int64_t now_ns = engine->state.now_ns, dead_ns = engine->state.timing.agent_dead_ns;
    int64_t since_ns = other->connected_ns > agent->lost_ns ? other->connected_ns : agent->lost_ns;
    bool is_of_host = agent->boot_id[0] && agent->network[0] && !strcmp(agent->boot_id, other->boot_id) &&
                      !strcmp(agent->host, other->host) && !strcmp(agent->network, other->network);
    return is_of_host && gs_agent_is_connected(other) && now_ns - since_ns >= dead_ns &&
           now_ns - other->heard_ns < dead_ns / 2;
}

bool gs_witness_of_end(const gs_engine *engine, const gs_agent *agent) {
    const gs_agent_table *agents = &engine->state.agents;
    for (size_t i = 0; i < agents->count; i++)
        if (agents->items[i] != agent && is_witness(engine, agent, agents->items[i])) return true;
    return false;
}
