// The GPUs that an agent offers, and which of its slots they belong to: slot i has the devices from
// i · per_slot on, as far as there are enough. Loop thread.
#ifndef COORDINATOR_AGENT_DEVICES_H
#define COORDINATOR_AGENT_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/json.h"

#define GS_MAX_AGENT_DEVICES 64

typedef struct gs_agent_device {
    char uuid[48], name[96], capability[12], driver[16], runtime[16];
    int64_t memory_bytes;
} gs_agent_device;

typedef struct gs_agent_devices {
    gs_agent_device *items;  // owned
    int count, per_slot;
    char nccl[48];     // version; "" where there is none
    char reason[192];  // why there is no device; "" when there is one
} gs_agent_devices;

// Of an AgentHello: `devices`, `devices_per_slot`, `devices_reason`, `nccl`; INVALID_ARGUMENT names the
// member. *out is overwritten.
GS_NODISCARD gs_status gs_agent_devices_read(gs_agent_devices *out, const gs_json *hello);
void gs_agent_devices_release(gs_agent_devices *devices);

bool gs_agent_devices_have(const gs_agent_devices *devices, const char *uuid);
// A GPU belongs to one worker: those that `other`, of worker `owner`, offers too are dropped.
void gs_agent_devices_drop_taken(gs_agent_devices *devices, const gs_agent_devices *other,
                                 const char *owner);

int gs_agent_devices_of_slot(const gs_agent_devices *devices, int slot);  // how many it has
// "GPU-…,GPU-…"; "" for a slot without.
void gs_agent_devices_uuids(char *text, size_t text_bytes, const gs_agent_devices *devices, int slot);
gs_json *gs_agent_devices_to_view(const gs_agent_devices *devices);

#endif
