// Agents as people are shown them.
#ifndef COORDINATOR_OBSERVE_WORKER_VIEW_H
#define COORDINATOR_OBSERVE_WORKER_VIEW_H

#include "coordinator/observe/observer.h"

// What a watcher of workers is told: {id, host, state, slots}. The caller's.
gs_json *gs_worker_to_notice(const gs_agent *agent, const char *state);

gs_json *gs_agent_devices_to_view(const gs_agent_devices *devices);  // a list; the caller's

void gs_list_workers(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);

#endif
