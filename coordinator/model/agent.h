// Agents and their slots: who is there, what is free, what runs where. Plain.
#ifndef COORDINATOR_MODEL_AGENT_H
#define COORDINATOR_MODEL_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "coordinator/model/agent_devices.h"
#include "coordinator/model/call.h"
#include "coordinator/model/cluster.h"
#include "coordinator/model/run.h"
#include "coordinator/rules/scheduler.h"
#include "core/u64_map.h"

typedef struct gs_agent_slot {
    uint64_t incarnation;  // of the trainer in it; 0: free
    uint64_t job;
    bool is_unknown;       // of a job that is not in this database: left alone, and the slot is taken
    int rank, world_size;  // of an unknown one, as its agent said; what follows is the same
    uint32_t generation;
    int64_t pid, step, since_ms;  // since when it is known to be here; wall clock
    char cluster[GS_CLUSTER_NAME_LEN];
} gs_agent_slot;

// The checkpoint directory of this coordinator, as a worker sees it.
typedef enum gs_agent_place {
    GS_PLACE_UNKNOWN = 0,
    GS_PLACE_SAME,
    GS_PLACE_APART  // it has another one: what its ranks save is not seen here, and the other way round
} gs_agent_place;

typedef struct gs_agent_members {
    int count, closed, unexplained;
} gs_agent_members;

typedef struct gs_agent {
    char name[64], host[128], boot_id[64], network[64], build[64], data_root[256];
    uint64_t incarnation;
    int64_t pid, cores;
    int num_slots;
    gs_agent_slot *slots;  // owned
    gs_agent_devices devices;
    gs_kept_call stream;  // call 0 while not connected
    int64_t heard_ns, lost_ns;  // without the time in which nobody listened here
    int64_t gone_ns;            // when its stream ended, as it was
    int64_t told_heartbeat_ns, heartbeat_ns;  // how often it was told to be heard; how often it is, as far as we know
    bool takes_cadence;                       // it hears of another one than its welcome said
    int64_t connected_ns;  // since when, if it is
    int64_t seen_epoch;    // of the last life of this database that it had seen by then; 0: none
    bool was_closed;  // the stream that it had: at its end, not by silence
    bool told_lost;
    gs_agent_members on;  // it, and not known to have ended; counted when somebody is away, good for that moment
    bool is_leaving;  // it ends when its trainers have: nothing is started there
    gs_agent_place place;
    int64_t place_due_ns;  // until then it may say where it sees checkpoints, and nothing is started there before; 0: it has, or never will
    bool shows_tokens;  // its trainers do, with each message
    bool looks_out;   // alone, it looks where its trainers' checkpoints lie, and leaves signs there
} gs_agent;

bool gs_agent_is_connected(const gs_agent *agent);
bool gs_agent_has(const gs_agent *agent, const gs_member *member);    // it is one of this worker's, and not known to have ended
bool gs_agent_holds(const gs_agent *agent, const gs_member *member);  // it has been told to start it
gs_slot_pools gs_agent_free_slots(const gs_agent *agent);             // none while not connected
gs_slot_pools gs_agent_all_slots(const gs_agent *agent);
bool gs_agent_slot_is_free(const gs_agent *agent, int slot, bool has_gpu);
bool gs_agent_slot_is_busy(const gs_agent *agent, int slot);

typedef struct gs_agent_table {  // {0} is empty
    gs_agent **items;            // owned; in no order
    size_t count, reserved;
    gs_u64_map by_name, by_incarnation;
} gs_agent_table;

void gs_agent_table_release(gs_agent_table *table);
gs_agent *gs_agent_table_find(const gs_agent_table *table, const char *name);  // NULL: none
gs_agent *gs_agent_table_of_incarnation(const gs_agent_table *table, uint64_t incarnation);
gs_agent *gs_agent_table_add(gs_agent_table *table, const char *name);  // NULL: out of memory
bool gs_agent_table_rename(gs_agent_table *table, gs_agent *agent, uint64_t incarnation);  // false: out of memory
// Takes it out; gs_agent_destroy is the caller's.
void gs_agent_table_unlink(gs_agent_table *table, gs_agent *agent);
void gs_agent_destroy(gs_agent *agent);

#endif
