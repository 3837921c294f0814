// What an agent is made of. Private to the agent (agent.h is what others see).
#ifndef WORKER_AGENT_HOST_AGENT_H
#define WORKER_AGENT_HOST_AGENT_H

#include <limits.h>

#include "rpc/client/rpc_client.h"
#include "worker/agent/agent_options.h"
#include "worker/agent/agent_reports.h"
#include "worker/agent/confinement.h"
#include "worker/agent/examination.h"
#include "worker/agent/host/host_devices.h"
#include "worker/agent/lookout.h"
#include "worker/agent/shared_place.h"
#include "worker/agent/slot.h"
#include "worker/agent/host/topology.h"
#include "worker/own_key.h"
#include "worker/seen_coordinator.h"

typedef struct gs_host_agent {
    gs_own_key key;
    const gs_agent_options *options;
    char name[64], host[128], boot_id[64], network[64], data_root[PATH_MAX];
    gs_topology topology;
    gs_host_devices devices;
    uint64_t incarnation;
    gs_rpc_context *context;
    gs_rpc_client *client;
    gs_agent_reports *reports;
    gs_lookout *lookout;
    gs_shared_place *place;
    gs_examination *examination;
    gs_trainer_user trainer_user;
    gs_confinement confinement;
    gs_slot *slots;
    int num_slots, signal_fd;

    gs_rpc_stream *stream;
    bool welcomed, told_silence, told_refusal, gives_rank_keys;
    gs_seen_coordinator seen;
    int64_t next_hello_ns, retry_ns, heartbeat_ns, next_heartbeat_ns;
    int64_t heard_ns, alone_since_ns, name_taken_since_ns;
    int64_t turned_ns, stood_ns;  // its last turn; when it woke up behind a standstill, until it has heard a coordinator: 0
    bool draining, stopped;
    int exit_code;
} gs_host_agent;

int gs_host_agent_count_busy(const gs_host_agent *agent);  // of its slots
void gs_host_agent_stop(gs_host_agent *agent, int exit_code);  // behind this turn

#endif
