#include "coordinator/observe/worker_view.h"

#include <string.h>

#include "coordinator/observe/views/control_path_view.h"
#include "coordinator/observe/views/page.h"
#include "core/clock.h"

gs_json *gs_worker_to_notice(const gs_agent *agent, const char *state) {
    gs_json *data = gs_json_new_object();
    gs_json_set_string(data, "id", agent->name);
    gs_json_set_string(data, "host", agent->host);
    gs_json_set_string(data, "state", state);
    gs_json_set_int(data, "slots", agent->num_slots);
    return data;
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

static gs_json *unknown_to_json(const gs_agent *agent) {
    gs_json *unknown = gs_json_new_array();
    for (int i = 0; i < agent->num_slots; i++) {
        const gs_agent_slot *slot = &agent->slots[i];
        if (!slot->is_unknown) continue;
        char job[GS_JOB_ID_LEN];
        gs_job_id_format(job, slot->job);
        gs_json *entry = gs_json_new_object();
        gs_json_set_string(entry, "job", job);
        if (slot->cluster[0]) gs_json_set_string(entry, "cluster", slot->cluster);
        gs_json_set_int(entry, "rank", slot->rank);
        gs_json_set_int(entry, "world_size", slot->world_size);
        gs_json_set_int(entry, "generation", slot->generation);
        gs_json_set_int(entry, "step", slot->step);
        gs_json_set_int(entry, "slot", i);
        gs_json_set_int(entry, "pid", slot->pid);
        gs_json_set_time(entry, "since", slot->since_ms);
        gs_json_push(unknown, entry);
    }
    return unknown;
}

// degraded_ms: since when one of its ranks at least is not heard while its generation steps; 0: all are.
static gs_json *slots_to_json(const gs_observer *observer, const gs_agent *agent, int *busy, int64_t *degraded_ms) {
    gs_json *jobs = gs_json_new_array();
    for (int i = 0; i < agent->num_slots; i++) {
        if (!agent->slots[i].incarnation) continue;
        (*busy)++;
        gs_member *member = gs_state_member(observer->state, agent->slots[i].incarnation);
        if (!member) continue;
        gs_json *entry = gs_json_new_object();
        gs_json_set_string(entry, "job", member->job->id_text);
        if (member->rank >= 0) gs_json_set_int(entry, "rank", member->rank);
        gs_json_set_int(entry, "slot", i);
        gs_json_push(jobs, entry);
        int64_t since_ms = member->control.since_ms;
        if (since_ms && (!*degraded_ms || since_ms < *degraded_ms)) *degraded_ms = since_ms;
    }
    return jobs;
}

static void set_devices(gs_json *item, const gs_agent *agent) {
    const gs_agent_devices *devices = &agent->devices;
    gs_json_set(item, "devices", gs_agent_devices_to_view(devices));
    gs_json_set_int(item, "devices_per_slot", devices->per_slot);
    gs_json_set_int(item, "slots_with_gpu", gs_agent_all_slots(agent).gpu);
    if (gs_agent_all_slots(agent).gpu == 0)
        gs_json_set_string(item, "devices_reason", devices->reason);
    if (devices->nccl[0]) gs_json_set_string(item, "nccl", devices->nccl);
}

static const char *state_of(const gs_agent *agent, int busy) {
    if (!gs_agent_is_connected(agent)) return "lost";
    if (agent->is_leaving) return "draining";
    return busy ? "running" : "idle";
}

static gs_json *agent_to_view(const gs_observer *observer, const gs_agent *agent, int64_t now_ns) {
    int busy = 0;
    int64_t degraded_ms = 0;
    gs_json *jobs = slots_to_json(observer, agent, &busy, &degraded_ms);
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "id", agent->name);
    gs_json_set_string(item, "host", agent->host);
    gs_json_set_string(item, "state", state_of(agent, busy));
    gs_json_set_int(item, "slots", agent->num_slots);
    gs_json_set_int(item, "slots_busy", busy);
    gs_json_set_int(item, "cores", agent->cores);
    set_devices(item, agent);
    gs_json_set_string(item, "build", agent->build);
    gs_json_set_bool(item, "connected", gs_agent_is_connected(agent));
    gs_json_set_double(item, "heartbeat_age_seconds", (double)(now_ns - agent->heard_ns) / GS_NS_PER_SEC);
    gs_control_path_to_view(item, degraded_ms);
    gs_json_set(item, "jobs", jobs);
    gs_json_set(item, "unknown", unknown_to_json(agent));
    return item;
}

// The first names behind `after`, in their order, one more than a page has; the table is in none. How many.
static size_t take_names(const gs_agent **first, size_t most, const gs_agent_table *agents, const char *after) {
    size_t count = 0;
    for (size_t i = 0; i < agents->count; i++) {
        const gs_agent *agent = agents->items[i];
        if (strcmp(agent->name, after) <= 0) continue;
        if (count == most && strcmp(agent->name, first[count - 1]->name) > 0) continue;
        size_t low = 0, high = count;
        while (low < high) {
            size_t middle = (low + high) / 2;
            if (strcmp(first[middle]->name, agent->name) < 0) low = middle + 1;
            else high = middle;
        }
        if (count < most) count++;
        memmove(first + low + 1, first + low, (count - 1 - low) * sizeof(const gs_agent *));
        first[low] = agent;
    }
    return count;
}

// By name, and the name of the last item is the cursor: workers that come and go meanwhile neither repeat nor hide others.
void gs_list_workers(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request) {
    (void)peer;
    const gs_observer *observer = ctx;
    const gs_agent *first[GS_PAGE_MAX_ITEMS + 1];
    const char *after = gs_json_string_or(request, "cursor", "");
    gs_page page = {0};
    gs_status status = strlen(after) >= sizeof first[0]->name ? gs_error(GS_INVALID_ARGUMENT, "cursor: not as it was given")
                                                              : gs_page_begin(&page, request, GS_PAGE_MAX_ITEMS);
    if (status.code) {
        gs_rpc_reply(call, status, NULL);
        return;
    }
    int64_t now_ns = gs_now_ns();
    size_t taken = 0, count = take_names(first, page.limit + 1, &observer->state->agents, after);
    while (taken < count && gs_page_add(&page, agent_to_view(observer, first[taken], now_ns))) taken++;
    gs_json *reply = gs_json_new_object();
    gs_json_set(reply, "items", gs_page_end(&page));
    if (taken < count) gs_json_set_string(reply, "next_cursor", first[taken - 1]->name);
    gs_rpc_reply(call, gs_ok(), reply);
}
