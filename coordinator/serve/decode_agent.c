#include "coordinator/serve/decode_agent.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/model/job_id.h"
#include "coordinator/model/memory.h"
#include "rpc/schema/messages.h"

#define MAX_SLOTS 4096

static void read_text(char *text, size_t text_bytes, const gs_json *object, const char *name) {
    snprintf(text, text_bytes, "%s", gs_json_string_or(object, name, ""));
}

static gs_status read_device(gs_agent_device *device, const gs_json *entry, size_t index) {
    read_text(device->uuid, sizeof device->uuid, entry, "uuid");
    if (!device->uuid[0]) return gs_error(GS_INVALID_ARGUMENT, "devices[%zu]: has no uuid", index);
    read_text(device->name, sizeof device->name, entry, "name");
    read_text(device->capability, sizeof device->capability, entry, "capability");
    read_text(device->driver, sizeof device->driver, entry, "driver");
    read_text(device->runtime, sizeof device->runtime, entry, "runtime");
    return gs_status_prefix(gs_json_read_int(&device->memory_bytes, entry, "memory_bytes", 0, INT64_MAX),
                            "devices");
}

static gs_status read_device_list(gs_agent_devices *out, const gs_json *list) {
    size_t count = gs_json_count(list);
    out->items = calloc(count, sizeof *out->items);
    if (!out->items) return gs_error(GS_RESOURCE_EXHAUSTED, "devices: out of memory");
    for (size_t i = 0; i < count; i++) {
        GS_TRY(read_device(&out->items[i], gs_json_at(list, i), i));
        if (gs_agent_devices_find(out, out->items[i].uuid) >= 0)
            return gs_error(GS_INVALID_ARGUMENT, "devices[%zu]: %s is there twice", i, out->items[i].uuid);
        out->count++;
    }
    return gs_ok();
}

static gs_status read_devices(gs_agent_devices *out, const gs_json *hello) {
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
        return gs_error(GS_INVALID_ARGUMENT, "devices: %zu of them, at most %d", count, GS_MAX_AGENT_DEVICES);
    int64_t per_slot = 1;
    if (gs_json_get(hello, "devices_per_slot"))
        GS_TRY(gs_json_read_int(&per_slot, hello, "devices_per_slot", 1, GS_MAX_AGENT_DEVICES));
    out->per_slot = (int)per_slot;
    if ((int)count < out->per_slot)
        snprintf(out->reason, sizeof out->reason, "it has %zu GPUs and gives %d to each slot", count,
                 out->per_slot);
    gs_status status = read_device_list(out, list);
    if (status.code) gs_agent_devices_release(out);
    return status;
}

static gs_status check_hello(const gs_json *request) {
    const char *name = gs_json_string_or(request, "worker", "");
    size_t span = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");
    if (span == 0 || span > 63 || name[span]) {
        return gs_error(GS_INVALID_ARGUMENT, "worker: \"%s\" is not 1 to 63 of A-Z a-z 0-9 . _ -", name);
    }
    int64_t least = gs_json_int_or(request, "proto_least", GS_PROTOCOL_LEAST);
    int64_t most = gs_json_int_or(request, "proto_most", GS_PROTOCOL_MOST);
    if (least > GS_PROTOCOL_MOST || most < GS_PROTOCOL_LEAST) {
        return gs_error(GS_FAILED_PRECONDITION,
                        "worker %s speaks protocol %lld to %lld, the coordinator %d to %d", name,
                        (long long)least, (long long)most, GS_PROTOCOL_LEAST, GS_PROTOCOL_MOST);
    }
    int64_t slots = 0;
    return gs_json_read_int(&slots, request, "slots", 1, MAX_SLOTS);
}

static gs_status read_trainer(gs_running_trainer *running, const gs_json *entry) {
    running->slot = gs_json_int_or(entry, "slot", -1);
    running->pid = gs_json_int_or(entry, "pid", 0);
    running->rank = (int)gs_json_int_or(entry, "rank", 0);
    running->world_size = (int)gs_json_int_or(entry, "world_size", 0);
    running->generation = (uint32_t)gs_json_int_or(entry, "generation", 0);
    running->step = gs_json_int_or(entry, "applied_step", 0);
    running->membership = gs_membership_of(gs_json_string_or(entry, "state", NULL));
    if (!gs_job_id_parse(&running->job, gs_json_string_or(entry, "job", ""))) running->job = 0;
    running->cluster = gs_json_string_or(entry, "cluster", "");
    return gs_json_read_u64(&running->incarnation, entry, "incarnation");
}

// What has no number is nobody.
static void read_running(gs_agent_hello *hello, const gs_json *list) {
    size_t count = gs_json_count(list);
    hello->running = gs_model_alloc(count, sizeof *hello->running);
    for (size_t i = 0; i < count; i++) {
        gs_status status = read_trainer(&hello->running[hello->num_running], gs_json_at(list, i));
        if (!status.code) hello->num_running++;
    }
}

gs_seen_life gs_decode_seen_life(const gs_json *request) {
    gs_seen_life seen = {.cluster = gs_json_string_or(request, "seen_cluster", ""),
                         .epoch = gs_json_int_or(request, "seen_epoch", 0)};
    gs_status status = gs_json_read_u64(&seen.life, request, "seen_life");
    if (status.code) seen.life = 0;
    return seen;
}

void gs_decode_agent_hello(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_AGENT_HELLO;
    gs_agent_hello *hello = &event->agent_hello;
    *hello = (gs_agent_hello){
        .refusal = check_hello(request),
        .worker = gs_json_string_or(request, "worker", ""),
        .host = gs_json_string_or(request, "host", ""),
        .boot_id = gs_json_string_or(request, "boot_id", ""),
        .network = gs_json_string_or(request, "network", ""),
        .build = gs_json_string_or(request, "build", ""),
        .data_root = gs_json_string_or(request, "data_root", ""),
        .seen = gs_decode_seen_life(request),
        .pid = gs_json_int_or(request, "pid", 0),
        .cores = gs_json_int_or(request, "cores", 0),
    };
    if (!hello->refusal.code) hello->refusal = read_devices(&hello->devices, request);
    if (hello->refusal.code) return;
    hello->num_slots = (int)gs_json_int_or(request, "slots", 1);
    hello->is_leaving = gs_json_bool_or(request, "leaving", false);
    hello->takes_cadence = gs_json_bool_or(request, "takes_cadence", false);
    hello->looks_out = gs_json_bool_or(request, "looks_out", false);
    hello->shows_tokens = gs_json_bool_or(request, "shows_tokens", false);
    hello->tells_place = gs_json_bool_or(request, "tells_place", false);
    read_running(hello, gs_json_get(request, "running"));
}

void gs_decode_agent_heartbeat(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_AGENT_HEARTBEAT;
    event->agent_heartbeat.is_leaving = gs_json_bool_or(request, "leaving", false);
    const char *place = gs_json_string_or(request, "place", "");
    if (strcmp(place, "same") == 0) event->agent_heartbeat.place = GS_PLACE_SAME;
    else event->agent_heartbeat.place = strcmp(place, "apart") == 0 ? GS_PLACE_APART : GS_PLACE_UNKNOWN;
}

static gs_status read_spec(gs_described_trainer *described, const gs_json *spec) {
    char *text = NULL;
    size_t bytes = 0;
    described->spec = calloc(1, sizeof *described->spec);
    gs_field_errors *errors = calloc(1, sizeof *errors);
    gs_status status = described->spec && errors ? gs_job_spec_decode(described->spec, spec, errors)
                                                 : gs_error(GS_RESOURCE_EXHAUSTED, "described: out of memory");
    free(errors);
    if (!status.code) status = gs_json_encode(&text, &bytes, spec, false);
    if (!status.code) gs_digest_format(described->spec_digest, gs_digest_of(text, bytes));
    free(text);
    return status;
}

void gs_decode_described(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_DESCRIBED;
    gs_described_trainer *described = &event->described;
    *described = (gs_described_trainer){.is_on_gpu = !strcmp(gs_json_string_or(request, "device", ""), gs_device_word(true)),
                                        .checkpoints_dir = gs_json_string_or(request, "checkpoints_dir", ""),
                                        .writes_as = gs_json_string_or(request, "writes_as", "")};
    int64_t last_generation = gs_json_int_or(request, "last_generation", 0);
    if (last_generation > 0 && last_generation <= UINT32_MAX) described->last_generation = (uint32_t)last_generation;
    gs_status status = read_trainer(&described->running, request);
    if (!status.code) status = gs_json_read_u64(&described->launch_token, request, "launch_token");
    if (!status.code) status = read_spec(described, gs_json_get(request, "spec"));
    described->refusal = status;
}

void gs_decode_exited(gs_engine_event *event, const gs_json *request) {
    event->kind = GS_ON_EXITED;
    gs_exit_report *exit = &event->exited;
    *exit = (gs_exit_report){.exit_code = (int)gs_json_int_or(request, "exit_code", -1),
                             .signal = (int)gs_json_int_or(request, "signal", 0)};
    exit->refusal = gs_json_read_u64(&exit->incarnation, request, "incarnation");
    const gs_json *tail = gs_json_get(request, "log_tail");
    gs_status status = tail ? gs_json_encode(&exit->log_tail, NULL, tail, false) : gs_ok();
    if (status.code) exit->log_tail = NULL;  // for people: nothing depends on it
}
