#include "worker/agent/host/host_devices.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const gs_json *find_ordinal(const gs_json *list, long ordinal) {
    for (size_t i = 0; i < gs_json_count(list); i++) {
        const gs_json *item = gs_json_at(list, i);
        if (gs_json_int_or(item, "ordinal", -1) == ordinal) return item;
    }
    return NULL;
}

static gs_status add(gs_host_devices *out, const gs_json *item) {
    gs_json *copy = gs_json_copy(item);
    if (!copy) return gs_error(GS_RESOURCE_EXHAUSTED, "devices: out of memory");
    gs_json_push(out->items, copy);
    out->count++;
    return gs_ok();
}

// "0,2,3"
static gs_status add_named(gs_host_devices *out, const char *wanted, const gs_json *list) {
    for (const char *at = wanted; *at;) {
        char *end;
        long ordinal = strtol(at, &end, 10);
        if (end == at || *at == '-' || *at == '+' || (*end && *end != ','))
            return gs_error(GS_INVALID_ARGUMENT,
                            "devices: \"%s\" is neither auto nor none nor numbers like 0,2", wanted);
        const gs_json *item = find_ordinal(list, ordinal);
        if (!item)
            return gs_error(GS_INVALID_ARGUMENT, "devices: there is no GPU %ld here%s%s", ordinal,
                            out->reason[0] ? ": " : "", out->reason);
        for (int i = 0; i < out->count; i++) {
            if (gs_json_int_or(gs_json_at(out->items, (size_t)i), "ordinal", -1) == ordinal)
                return gs_error(GS_INVALID_ARGUMENT, "devices: GPU %ld is named twice", ordinal);
        }
        GS_TRY(add(out, item));
        at = *end ? end + 1 : end;
    }
    return gs_ok();
}

static gs_status choose(gs_host_devices *out, const char *wanted, const gs_json *probe) {
    const gs_json *list = gs_json_get(probe, "devices");
    if (strcmp(wanted, "auto") != 0) return add_named(out, wanted, list);
    for (size_t i = 0; i < gs_json_count(list); i++) GS_TRY(add(out, gs_json_at(list, i)));
    return gs_ok();
}

gs_status gs_host_devices_choose(gs_host_devices *out, const char *wanted, int64_t per_slot,
                                 const gs_json *probe, gs_status failed) {
    *out = (gs_host_devices){.items = gs_json_new_array(), .per_slot = per_slot > 0 ? (int)per_slot : 1};
    if (!out->items) return gs_error(GS_RESOURCE_EXHAUSTED, "devices: out of memory");
    const char *reason = gs_json_string_or(probe, "devices_reason", "");
    if (failed.code) reason = failed.message;
    snprintf(out->reason, sizeof out->reason, "%s", reason);
    snprintf(out->nccl, sizeof out->nccl, "%s", gs_json_string_or(probe, "nccl", ""));
    if (!wanted || strcmp(wanted, "none") == 0) {
        snprintf(out->reason, sizeof out->reason, "it was started with --devices none");
        return gs_ok();
    }
    gs_status status = choose(out, wanted, probe);
    if (!status.code && out->count > 0 && out->count < out->per_slot)
        status = gs_error(GS_INVALID_ARGUMENT, "devices_per_slot: %d, and there are %d devices",
                          out->per_slot, out->count);
    if (status.code) gs_host_devices_release(out);
    return status;
}

void gs_host_devices_release(gs_host_devices *devices) {
    gs_json_release(devices->items);
    *devices = (gs_host_devices){0};
}

int gs_host_devices_of_slot(const gs_host_devices *devices, int slot) {
    if (devices->count == 0) return 0;
    return (slot + 1) * devices->per_slot <= devices->count ? devices->per_slot : 0;
}

void gs_host_devices_visible(char *text, size_t text_bytes, const gs_host_devices *devices,
                             int slot) {
    text[0] = '\0';
    int count = gs_host_devices_of_slot(devices, slot);
    for (int i = 0, used = 0; i < count && (size_t)used < text_bytes; i++) {
        const gs_json *item = gs_json_at(devices->items, (size_t)(slot * devices->per_slot + i));
        used += snprintf(text + used, text_bytes - (size_t)used, "%s%s", i ? "," : "",
                         gs_json_string_or(item, "uuid", ""));
    }
}

int gs_host_devices_slots(const gs_host_devices *devices) {
    int slots = devices->count / (devices->per_slot > 0 ? devices->per_slot : 1);
    return slots > 0 ? slots : 1;
}

void gs_host_devices_describe(gs_json *hello, const gs_host_devices *devices) {
    gs_json_set(hello, "devices", gs_json_copy(devices->items));
    gs_json_set_int(hello, "devices_per_slot", devices->per_slot);
    if (devices->count == 0) gs_json_set_string(hello, "devices_reason", devices->reason);
    if (devices->nccl[0]) gs_json_set_string(hello, "nccl", devices->nccl);
}
