// What a coordinator orders of an agent's slots: a trainer that is started, stopped, described, adopted.
#ifndef WORKER_AGENT_RANK_ORDERS_H
#define WORKER_AGENT_RANK_ORDERS_H

#include "worker/agent/host_agent.h"

bool gs_rank_orders_take(gs_host_agent *agent, const char *type, const gs_json *item);  // false: it is about something else

#endif
