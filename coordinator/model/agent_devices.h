// The GPUs that an agent offers, and which of its slots they belong to: slot i has the devices from
// i · per_slot on, as far as there are enough. Plain.
#ifndef COORDINATOR_MODEL_AGENT_DEVICES_H
#define COORDINATOR_MODEL_AGENT_DEVICES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GS_MAX_AGENT_DEVICES 64

typedef struct gs_agent_device {
    char uuid[48], name[96], capability[12], driver[16], runtime[16];
    int64_t memory_bytes;
    bool is_taken;  // another worker gives it out
} gs_agent_device;

typedef struct gs_agent_devices {
    gs_agent_device *items;  // owned
    int count, per_slot;
    char nccl[48];     // version; "" where there is none
    char reason[192];  // why no slot has one, where none has
} gs_agent_devices;

void gs_agent_devices_release(gs_agent_devices *devices);

// Where it is in items; −1: it is not there.
int gs_agent_devices_find(const gs_agent_devices *devices, const char *uuid);
// A GPU belongs to one worker. It keeps its place, so that the others stay with the slots that the agent gives
// them to; a slot whose group is not whole has none.
void gs_agent_devices_leave(gs_agent_devices *devices, int index, const char *owner);

int gs_agent_devices_of_slot(const gs_agent_devices *devices, int slot);  // how many it has
// "GPU-…,GPU-…"; "" for a slot without.
void gs_agent_devices_uuids(char *text, size_t text_bytes, const gs_agent_devices *devices, int slot);

#endif
