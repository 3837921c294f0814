#include "worker/agent/host_agent.h"

int gs_host_agent_count_busy(const gs_host_agent *agent) {
    int busy = 0;
    for (int i = 0; i < agent->num_slots; i++) busy += gs_slot_busy(&agent->slots[i]);
    return busy;
}

void gs_host_agent_stop(gs_host_agent *agent, int exit_code) {
    agent->stopped = true;
    agent->exit_code = exit_code;
}
