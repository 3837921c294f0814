#include "coordinator/agent_devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void read_text(char *text, size_t text_bytes, const gs_json *object, const char *name) {
    snprintf(text, text_bytes, "%s", gs_json_string_or(object, name, ""));
}

static gs_status read_device(gs_agent_device *device, const gs_json *entry, size_t index) {
    read_text(device->uuid, sizeof device->uuid, entry, "uuid");
    if (!device->uuid[0])
        return gs_error(GS_INVALID_ARGUMENT, "devices[%zu]: has no uuid", index);
    read_text(device->name, sizeof device->name, entry, "name");
    read_text(device->capability, sizeof device->capability, entry, "capability");
    read_text(device->driver, sizeof device->driver, entry, "driver");
    read_text(device->runtime, sizeof device->runtime, entry, "runtime");
    return gs_status_prefix(
        gs_json_read_int(&device->memory_bytes, entry, "memory_bytes", 0, INT64_MAX), "devices");
}

gs_status gs_agent_devices_read(gs_agent_devices *out, const gs_json *hello) {
    *out = (gs_agent_devices){.per_slot = 1};
    const gs_json *list = gs_json_get(hello, "devices");
    read_text(out->reason, sizeof out->reason, hello, "devices_reason");
    read_text(out->nccl, sizeof out->nccl, hello, "nccl");
    size_t count = gs_json_count(list);
    if (count == 0) {
        if (!out->reason[0]) snprintf(out->reason, sizeof out->reason, "it offers none");
        return gs_ok();
    }
    if (count > GS_MAX_AGENT_DEVICES)
        return gs_error(GS_INVALID_ARGUMENT, "devices: %zu of them, at most %d", count,
                        GS_MAX_AGENT_DEVICES);
    int64_t per_slot = 1;
    if (gs_json_get(hello, "devices_per_slot"))
        GS_TRY(gs_json_read_int(&per_slot, hello, "devices_per_slot", 1, GS_MAX_AGENT_DEVICES));
    out->items = calloc(count, sizeof *out->items);
    if (!out->items) return gs_error(GS_RESOURCE_EXHAUSTED, "devices: out of memory");
    out->per_slot = (int)per_slot;
    for (size_t i = 0; i < count; i++) {
        gs_status status = read_device(&out->items[i], gs_json_at(list, i), i);
        if (status.code) {
            gs_agent_devices_release(out);
            return status;
        }
        out->count++;
    }
    return gs_ok();
}

void gs_agent_devices_release(gs_agent_devices *devices) {
    free(devices->items);
    *devices = (gs_agent_devices){0};
}

bool gs_agent_devices_have(const gs_agent_devices *devices, const char *uuid) {
    for (int i = 0; i < devices->count; i++) {
        if (strcmp(devices->items[i].uuid, uuid) == 0) return true;
    }
    return false;
}

void gs_agent_devices_drop_taken(gs_agent_devices *devices, const gs_agent_devices *other,
                                 const char *owner) {
    int kept = 0;
    for (int i = 0; i < devices->count; i++) {
        if (!gs_agent_devices_have(other, devices->items[i].uuid)) {
            devices->items[kept++] = devices->items[i];
            continue;
        }
        snprintf(devices->reason, sizeof devices->reason, "worker %s offers %s already", owner,
                 devices->items[i].uuid);
    }
    devices->count = kept;
    if (kept > 0) devices->reason[0] = '\0';
}

int gs_agent_devices_of_slot(const gs_agent_devices *devices, int slot) {
    if (devices->count == 0) return 0;
    return (slot + 1) * devices->per_slot <= devices->count ? devices->per_slot : 0;
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

gs_json *gs_agent_devices_to_view(const gs_agent_devices *devices) {
    gs_json *items = gs_json_new_array();
    for (int i = 0; i < devices->count; i++) {
        const gs_agent_device *device = &devices->items[i];
        gs_json *item = gs_json_new_object();
        gs_json_set_string(item, "uuid", device->uuid);
        gs_json_set_string(item, "name", device->name);
        gs_json_set_int(item, "memory_bytes", device->memory_bytes);
        gs_json_set_string(item, "capability", device->capability);
        gs_json_set_string(item, "driver", device->driver);
        gs_json_set_string(item, "runtime", device->runtime);
        gs_json_push(items, item);
    }
    return items;
}
