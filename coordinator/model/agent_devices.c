#include "coordinator/model/agent_devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void gs_agent_devices_release(gs_agent_devices *devices) {
    free(devices->items);
    *devices = (gs_agent_devices){0};
}

int gs_agent_devices_find(const gs_agent_devices *devices, const char *uuid) {
    for (int i = 0; i < devices->count; i++) {
        if (strcmp(devices->items[i].uuid, uuid) == 0) return i;
    }
    return -1;
}

void gs_agent_devices_leave(gs_agent_devices *devices, int index, const char *owner) {
    gs_agent_device *device = &devices->items[index];
    device->is_taken = true;
    snprintf(devices->reason, sizeof devices->reason, "worker %s offers %s already", owner,
             device->uuid);
}

int gs_agent_devices_of_slot(const gs_agent_devices *devices, int slot) {
    if ((slot + 1) * devices->per_slot > devices->count) return 0;
    for (int i = 0; i < devices->per_slot; i++) {
        if (devices->items[slot * devices->per_slot + i].is_taken) return 0;
    }
    return devices->per_slot;
}

void gs_agent_devices_uuids(char *text, size_t text_bytes, const gs_agent_devices *devices,
                            int slot) {
    text[0] = '\0';
    int count = gs_agent_devices_of_slot(devices, slot);
    for (int i = 0, used = 0; i < count && (size_t)used < text_bytes; i++) {
        used += snprintf(text + used, text_bytes - (size_t)used, "%s%s", i ? "," : "",
                         devices->items[slot * devices->per_slot + i].uuid);
    }
}
