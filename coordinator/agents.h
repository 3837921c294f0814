// Agents and their slots: who is there, what is free, what runs where. Loop thread.
#ifndef COORDINATOR_AGENTS_H
#define COORDINATOR_AGENTS_H

#include "coordinator/agent_devices.h"
#include "coordinator/coordinator.h"
#include "coordinator/run.h"
#include "coordinator/scheduler.h"

typedef struct gs_agent_slot {
    uint64_t incarnation;  // of the trainer in it; 0: free
    uint64_t job;
    bool is_unknown;       // of a job that is not in this database: left alone, and the slot is taken
    int rank;              // of an unknown one, as its agent said
    int64_t pid;
} gs_agent_slot;

struct gs_agent {
    char name[64], host[128], boot_id[64], build[64], data_root[256];
    uint64_t incarnation;
    int64_t pid, cores;
    int num_slots;
    gs_agent_slot *slots;  // owned
    gs_agent_devices devices;
    gs_rpc_call_handle *stream;  // NULL while not connected
    gs_held held;
    int64_t heard_ns, lost_ns;
    bool was_closed;  // the stream that it had: at its end, not by silence
    bool told_lost;
    bool is_leaving;  // it ends when its trainers have: nothing is started there
};

gs_agent *gs_agents_find(gs_coordinator *coordinator, const char *name);
gs_agent *gs_agents_of_incarnation(gs_coordinator *coordinator, uint64_t incarnation);
bool gs_agent_holds(const gs_agent *agent, const gs_member *member);  // it has been told to start it
gs_slot_pools gs_agent_free_slots(const gs_agent *agent);  // none while not connected
gs_slot_pools gs_agent_all_slots(const gs_agent *agent);
bool gs_agent_slot_is_free(const gs_agent *agent, int slot, bool has_gpu);
void gs_agents_release_all(gs_coordinator *coordinator);
void gs_agents_tick(gs_coordinator *coordinator);

// Takes the slot and tells the agent. False when it cannot be told.
bool gs_agent_start_rank(gs_coordinator *coordinator, gs_agent *agent, gs_member *member,
                         int rank_hint);
// Tells the agent of the member, when it is there, to end it.
void gs_agent_stop_rank(gs_coordinator *coordinator, gs_member *member, bool kill,
                        double grace_seconds);

void gs_agent_hello(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request);
void gs_agent_heartbeat(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                        const gs_json *request);
void gs_exited(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
               const gs_json *request);
void gs_list_workers(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request);

#endif
