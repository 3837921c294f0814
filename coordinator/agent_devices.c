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
    if (list && gs_json_type_of(list) != GS_JSON_ARRAY)
        return gs_error(GS_INVALID_ARGUMENT, "devices: is no list");
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
    if ((int)count < out->per_slot)
        snprintf(out->reason, sizeof out->reason, "it has %zu GPUs and gives %d to each slot", count,
                 out->per_slot);
    for (size_t i = 0; i < count; i++) {
        gs_status status = read_device(&out->items[i], gs_json_at(list, i), i);
        if (!status.code && gs_agent_devices_find(out, out->items[i].uuid) >= 0)
            status = gs_error(GS_INVALID_ARGUMENT, "devices[%zu]: %s is there twice", i,
                              out->items[i].uuid);
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

gs_json *gs_agent_devices_to_view(const gs_agent_devices *devices) {
    gs_json *items = gs_json_new_array();
    for (int i = 0; i < devices->count; i++) {
        const gs_agent_device *device = &devices->items[i];
        if (device->is_taken) continue;
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
