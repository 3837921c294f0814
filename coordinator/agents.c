#include "coordinator/agents.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/checkpoints.h"
#include "coordinator/cluster.h"
#include "coordinator/events.h"
#include "coordinator/job_control.h"
#include "coordinator/job_id.h"
#include "coordinator/membership.h"
#include "coordinator/watch.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/log.h"
#include "rpc/schema/messages.h"

#define MAX_SLOTS 4096

static uint64_t name_key(const char *name) { return gs_hash64(name, strlen(name), 1) | 1; }

gs_agent *gs_agents_find(gs_coordinator *coordinator, const char *name) {
    gs_agent *agent = gs_u64_map_get(&coordinator->agents_by_name, name_key(name));
    return agent && !strcmp(agent->name, name) ? agent : NULL;
}

gs_agent *gs_agents_of_incarnation(gs_coordinator *coordinator, uint64_t incarnation) {
    return gs_u64_map_get(&coordinator->agents_by_incarnation, incarnation);
}

bool gs_agent_holds(const gs_agent *agent, const gs_member *member) {
    return member->slot < agent->num_slots &&
           agent->slots[member->slot].incarnation == member->incarnation;
}

static bool is_busy(const gs_agent *agent, int slot) {
    return slot < agent->num_slots && agent->slots[slot].incarnation != 0;
}

static bool has_gpu_at(const gs_agent *agent, int slot) {
    return gs_agent_devices_of_slot(&agent->devices, slot) > 0;
}

bool gs_agent_slot_is_free(const gs_agent *agent, int slot, bool has_gpu) {
    return agent->slots[slot].incarnation == 0 && has_gpu_at(agent, slot) == has_gpu;
}

gs_slot_pools gs_agent_free_slots(const gs_agent *agent) {
    gs_slot_pools pools = {0};
    for (int i = 0; agent->stream && !agent->is_leaving && i < agent->num_slots; i++) {
        pools.plain += gs_agent_slot_is_free(agent, i, false);
        pools.gpu += gs_agent_slot_is_free(agent, i, true);
    }
    return pools;
}

gs_slot_pools gs_agent_all_slots(const gs_agent *agent) {
    gs_slot_pools pools = {0};
    for (int i = 0; i < agent->num_slots; i++) pools.gpu += has_gpu_at(agent, i);
    pools.plain = agent->num_slots - pools.gpu;
    return pools;
}

static void free_agent(gs_coordinator *coordinator, gs_agent *agent) {
    gs_u64_map_remove(&coordinator->agents_by_name, name_key(agent->name));
    gs_u64_map_remove(&coordinator->agents_by_incarnation, agent->incarnation);
    free(agent->slots);
    gs_agent_devices_release(&agent->devices);
    free(agent);
}

void gs_agents_release_all(gs_coordinator *coordinator) {
    for (size_t i = 0; i < coordinator->num_agents; i++) {
        gs_agent *agent = coordinator->agents[i];
        if (agent->stream) gs_rpc_end(agent->stream, gs_error(GS_UNAVAILABLE, "the coordinator stops"));
        free_agent(coordinator, agent);
    }
    free(coordinator->agents);
    coordinator->agents = NULL;
    coordinator->num_agents = 0;
}

bool gs_agent_start_rank(gs_coordinator *coordinator, gs_agent *agent, gs_member *member,
                         int rank_hint) {
    gs_job *job = member->job;
    agent->slots[member->slot] =
        (gs_agent_slot){.incarnation = member->incarnation, .job = job->id};
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "start_rank");
    gs_json_set_string(item, "cluster", coordinator->cluster);
    gs_json_set_int(item, "slot", member->slot);
    gs_json_set_string(item, "job", job->id_text);
    gs_json_set_string(item, "job_name", job->spec.name);
    gs_json_set_int(item, "rank_hint", rank_hint);
    gs_json_set_u64(item, "incarnation", member->incarnation);
    gs_json_set_u64(item, "launch_token", member->launch_token);
    gs_json_set_string(item, "device", member->device);
    gs_json_set(item, "spec", gs_json_copy(job->spec_json));
    char directory[1100];
    gs_checkpoints_job_directory(directory, sizeof directory, coordinator, job);
    gs_json_set_string(item, "checkpoints_dir", directory);
    gs_json *resume = gs_checkpoints_newest(coordinator, job);
    if (resume) gs_json_set(item, "resume", resume);
    return gs_rpc_item(agent->stream, item);
}

static void send_stop(gs_agent *agent, int slot, uint64_t incarnation, bool kill,
                      double grace_seconds) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "stop_rank");
    gs_json_set_int(item, "slot", slot);
    gs_json_set_u64(item, "incarnation", incarnation);
    gs_json_set_string(item, "signal", kill ? "kill" : "term");
    gs_json_set_double(item, "grace_seconds", grace_seconds);
    if (!gs_rpc_item(agent->stream, item)) {
        gs_log_warn("agent too slow to be told", "worker=%s slot=%d", agent->name, slot);
    }
}

void gs_agent_stop_rank(gs_coordinator *coordinator, gs_member *member, bool kill,
                        double grace_seconds) {
    if (member->exited) return;
    gs_agent *agent = gs_agents_find(coordinator, member->worker);
    // Who is out of reach hears that its generation is over when it comes back, and leaves by itself.
    if (!agent || !agent->stream) return;
    member->kill_sent = true;
    send_stop(agent, member->slot, member->incarnation, kill, grace_seconds);
}

static void publish_worker(gs_coordinator *coordinator, const gs_agent *agent, const char *state) {
    gs_json *data = gs_json_new_object();
    gs_json_set_string(data, "id", agent->name);
    gs_json_set_string(data, "host", agent->host);
    gs_json_set_string(data, "state", state);
    gs_json_set_int(data, "slots", agent->num_slots);
    gs_watch_publish(coordinator, NULL, GS_TOPIC_WORKER, data);
}

static void lose_stream(void *owner, gs_rpc_call_handle *call) {
    gs_agent *agent = owner;
    if (agent->stream != call) return;
    agent->stream = NULL;
    agent->was_closed = gs_rpc_call_was_closed(call);
    agent->lost_ns = gs_now_ns();
    gs_log_warn("worker disconnected", "worker=%s", agent->name);
}

// Trainers end with their agent. But an agent that is not heard may be well, and one that was closed may have
// closed what it did not hear: it is dead when its trainers' connections have been closed with its own.
typedef struct agent_members {
    int count, closed;
} agent_members;

static agent_members count_members(const gs_coordinator *coordinator, const gs_agent *agent) {
    agent_members on = {0};
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        const gs_run *run = coordinator->jobs[i]->run;
        for (int m = 0; run && m < run->num_members; m++) {
            const gs_member *member = &run->members[m];
            if (member->exited || strcmp(member->worker, agent->name) != 0) continue;
            on.count++;
            on.closed += !member->stream && (member->stream_closed || !member->said_hello);
        }
    }
    return on;
}

static void lose_members(gs_coordinator *coordinator, gs_agent *agent) {
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        gs_run *run = coordinator->jobs[i]->run;
        for (int m = 0; run && m < run->num_members; m++) {
            gs_member *member = &run->members[m];
            if (member->exited || strcmp(member->worker, agent->name) != 0) continue;
            gs_member_exited(coordinator, member, -1, 0, NULL);
        }
    }
}

static bool has_unknown(const gs_agent *agent) {
    for (int i = 0; i < agent->num_slots; i++)
        if (agent->slots[i].is_unknown) return true;
    return false;
}

// Of a GPU that both see: who trains on it has it, and else who had it.
static void share_devices(gs_agent *agent, gs_agent *other) {
    gs_agent_devices *own = &agent->devices, *theirs = &other->devices;
    for (int i = 0; i < own->count; i++) {
        int there = gs_agent_devices_find(theirs, own->items[i].uuid);
        if (there < 0 || theirs->items[there].is_taken) continue;
        if (is_busy(agent, i / own->per_slot) && !is_busy(other, there / theirs->per_slot))
            gs_agent_devices_leave(theirs, there, agent->name);
        else
            gs_agent_devices_leave(own, i, other->name);
    }
}

// Two workers of one host may see the same GPUs. Who is away for a moment keeps its own.
static void claim_devices(gs_coordinator *coordinator, gs_agent *agent) {
    for (int i = 0; i < agent->devices.count; i++) agent->devices.items[i].is_taken = false;
    for (size_t i = 0; i < coordinator->num_agents; i++) {
        gs_agent *other = coordinator->agents[i];
        if (other != agent && other->devices.count > 0) share_devices(agent, other);
    }
}

// After a worker has gone, or has come back with other GPUs.
static void claim_left_devices(gs_coordinator *coordinator) {
    for (size_t i = 0; i < coordinator->num_agents; i++) {
        gs_agent *agent = coordinator->agents[i];
        bool lacks = false;
        for (int d = 0; d < agent->devices.count; d++) lacks |= agent->devices.items[d].is_taken;
        if (lacks) claim_devices(coordinator, agent);
    }
}

void gs_agents_tick(gs_coordinator *coordinator) {
    int64_t now_ns = gs_now_ns();
    for (size_t i = 0; i < coordinator->num_agents; i++) {
        gs_agent *agent = coordinator->agents[i];
        if (agent->stream || now_ns - agent->lost_ns < coordinator->timing.agent_dead_ns) continue;
        if (!agent->told_lost) {
            agent->told_lost = true;
            gs_event_add(coordinator, NULL, NULL, GS_SEVERITY_WARNING, "WorkerLost",
                         "worker %s on %s is %s", agent->name, agent->host,
                         agent->was_closed ? "gone" : "silent");
            publish_worker(coordinator, agent, "lost");
        }
        const agent_members on = count_members(coordinator, agent);
        bool is_dead = agent->was_closed && on.closed == on.count;
        bool may_return = !is_dead && now_ns - agent->lost_ns < coordinator->timing.orphan_ns;
        if (!is_dead && (on.count > 0 || (may_return && has_unknown(agent)))) continue;
        coordinator->agents[i] = coordinator->agents[--coordinator->num_agents];
        lose_members(coordinator, agent);
        bool had_devices = agent->devices.count > 0;
        free_agent(coordinator, agent);
        if (had_devices) claim_left_devices(coordinator);
        coordinator->schedule_needed = true;
        i--;
    }
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

static gs_agent *add_agent(gs_coordinator *coordinator, const char *name) {
    if (coordinator->num_agents == coordinator->max_agents) {
        size_t max_agents = coordinator->max_agents ? coordinator->max_agents * 2 : 64;
        gs_agent **agents = realloc(coordinator->agents, max_agents * sizeof(gs_agent *));
        if (!agents) return NULL;
        coordinator->agents = agents;
        coordinator->max_agents = max_agents;
    }
    gs_agent *agent = calloc(1, sizeof *agent);
    if (!agent) return NULL;
    snprintf(agent->name, sizeof agent->name, "%s", name);
    if (!gs_u64_map_set(&coordinator->agents_by_name, name_key(name), agent)) {
        free(agent);
        return NULL;
    }
    coordinator->agents[coordinator->num_agents++] = agent;
    return agent;
}

// Takes the devices.
static bool fill_agent(gs_agent *agent, const gs_json *request, gs_agent_devices *devices) {
    int num_slots = (int)gs_json_int_or(request, "slots", 1);
    gs_agent_slot *slots = calloc((size_t)num_slots, sizeof *slots);
    if (!slots) return false;
    free(agent->slots);
    agent->slots = slots;
    gs_agent_devices_release(&agent->devices);
    agent->devices = *devices;
    *devices = (gs_agent_devices){0};
    agent->num_slots = num_slots;
    snprintf(agent->host, sizeof agent->host, "%s", gs_json_string_or(request, "host", ""));
    snprintf(agent->boot_id, sizeof agent->boot_id, "%s", gs_json_string_or(request, "boot_id", ""));
    snprintf(agent->build, sizeof agent->build, "%s", gs_json_string_or(request, "build", ""));
    snprintf(agent->data_root, sizeof agent->data_root, "%s",
             gs_json_string_or(request, "data_root", ""));
    agent->pid = gs_json_int_or(request, "pid", 0);
    agent->cores = gs_json_int_or(request, "cores", 0);
    return true;
}

// Of another coordinator, or of a database that is lost: nobody here can say that it should end.
static void leave_alone(gs_coordinator *coordinator, const gs_agent *agent, int index) {
    const gs_agent_slot *slot = &agent->slots[index];
    char job[GS_JOB_ID_LEN];
    gs_job_id_format(job, slot->job);
    gs_log_warn("trainer of an unknown job", "worker=%s slot=%d job=%s rank=%d pid=%lld", agent->name,
                index, job, slot->rank, (long long)slot->pid);
    gs_event_add(coordinator, NULL, NULL, GS_SEVERITY_WARNING, "UnknownTrainer",
                 "worker %s slot %d runs rank %d of job %s, which is not known here: it is left alone "
                 "and keeps the slot; is this the right data directory?",
                 agent->name, index, slot->rank, job);
}

// What runs there and is ours keeps its slot; what was ours and is not any more is asked to save and end.
static void adopt_running(gs_coordinator *coordinator, gs_agent *agent, const gs_json *running) {
    for (size_t i = 0; i < gs_json_count(running); i++) {
        const gs_json *entry = gs_json_at(running, i);
        int64_t slot = gs_json_int_or(entry, "slot", -1);
        uint64_t incarnation = 0, job_id = 0;
        gs_status status = gs_json_read_u64(&incarnation, entry, "incarnation");
        if (status.code || slot < 0 || slot >= agent->num_slots) continue;
        const char *job = gs_json_string_or(entry, "job", "");
        if (!gs_job_id_parse(&job_id, job)) job_id = 0;
        agent->slots[slot] = (gs_agent_slot){.incarnation = incarnation,
                                             .job = job_id,
                                             .is_unknown = gs_cluster_is_other(coordinator, entry) ||
                                                           !gs_jobs_by_id_text(coordinator, job),
                                             .rank = (int)gs_json_int_or(entry, "rank", 0),
                                             .pid = gs_json_int_or(entry, "pid", 0)};
        if (agent->slots[slot].is_unknown) {
            leave_alone(coordinator, agent, (int)slot);
            continue;
        }
        gs_member *member = gs_u64_map_get(&coordinator->members, incarnation);
        if (!member || member->exited) {
            send_stop(agent, (int)slot, incarnation, false,
                      (double)coordinator->timing.save_ns / GS_NS_PER_SEC);
            continue;
        }
        if (member->kill_sent) {
            send_stop(agent, (int)slot, incarnation, true, 0);
            continue;
        }
        gs_run *run = member->job->run;
        if (run->phase == GS_RUN_RELOADING && run->phase_deadline_ns) {
            run->phase_deadline_ns = gs_now_ns() + coordinator->timing.agent_grace_ns;
        }
    }
}

// What should run there and does not has ended unseen.
static void notice_missing(gs_coordinator *coordinator, gs_agent *agent) {
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        gs_run *run = coordinator->jobs[i]->run;
        for (int m = 0; run && m < run->num_members; m++) {
            gs_member *member = &run->members[m];
            if (member->exited || strcmp(member->worker, agent->name) != 0) continue;
            if (gs_agent_holds(agent, member)) continue;
            gs_member_exited(coordinator, member, -1, 0, NULL);
        }
    }
}

void gs_agent_hello(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request) {
    gs_coordinator *coordinator = ctx;
    gs_agent_devices devices = {0};
    gs_status status = check_hello(request);
    if (!status.code) status = gs_agent_devices_read(&devices, request);
    uint64_t incarnation = peer->incarnation;
    const char *name = gs_json_string_or(request, "worker", "");
    if (!status.code) status = gs_cluster_check(coordinator, request, name);
    gs_agent *agent = status.code ? NULL : gs_agents_find(coordinator, name);
    if (agent && agent->stream && agent->incarnation != incarnation) {
        status = gs_error(GS_ALREADY_EXISTS, "worker \"%s\" is connected already (pid %lld on %s)", name,
                          (long long)agent->pid, agent->host);
    }
    bool known = agent != NULL;
    if (!status.code && !agent) agent = add_agent(coordinator, name);
    if (!status.code && (!agent || !fill_agent(agent, request, &devices))) {
        status = gs_error(GS_RESOURCE_EXHAUSTED, "agent: out of memory");
    }
    gs_agent_devices_release(&devices);
    if (status.code) {
        gs_rpc_end(call, status);
        return;
    }
    if (agent->stream) gs_rpc_end(agent->stream, gs_error(GS_ABORTED, "said hello again"));
    gs_u64_map_remove(&coordinator->agents_by_incarnation, agent->incarnation);
    agent->incarnation = incarnation;
    if (!gs_u64_map_set(&coordinator->agents_by_incarnation, incarnation, agent)) {
        gs_rpc_end(call, gs_error(GS_RESOURCE_EXHAUSTED, "agent: out of memory"));
        return;
    }
    agent->stream = call;
    agent->was_closed = agent->told_lost = false;
    agent->is_leaving = gs_json_bool_or(request, "leaving", false);
    agent->heard_ns = gs_now_ns();
    gs_held_keep(&agent->held, call, lose_stream, agent);
    gs_json *welcome = gs_json_new_object();
    gs_json_set_string(welcome, "type", "welcome");
    gs_cluster_welcome(coordinator, welcome);
    gs_json_set_double(welcome, "heartbeat_seconds",
                       (double)gs_coordinator_heartbeat_ns(coordinator) / GS_NS_PER_SEC);
    gs_json_set_string(welcome, "checkpoints_dir", coordinator->checkpoints_dir);
    gs_rpc_item(call, welcome);
    adopt_running(coordinator, agent, gs_json_get(request, "running"));
    notice_missing(coordinator, agent);
    claim_devices(coordinator, agent);
    claim_left_devices(coordinator);
    if (!known) {
        gs_event_add(coordinator, NULL, NULL, GS_SEVERITY_INFO, "WorkerJoined",
                     "worker %s on %s offers %d slots, %d with a GPU", agent->name, agent->host,
                     agent->num_slots, gs_agent_all_slots(agent).gpu);
    }
    publish_worker(coordinator, agent, "idle");
    coordinator->schedule_needed = true;
}

void gs_agent_heartbeat(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                        const gs_json *request) {
    (void)call;
    gs_agent *agent = gs_agents_of_incarnation(ctx, peer->incarnation);
    if (!agent) return;
    agent->heard_ns = gs_now_ns();
    agent->is_leaving = gs_json_bool_or(request, "leaving", agent->is_leaving);
}

void gs_exited(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
               const gs_json *request) {
    gs_coordinator *coordinator = ctx;
    gs_agent *agent = gs_agents_of_incarnation(coordinator, peer->incarnation);
    uint64_t incarnation = 0;
    gs_status status = gs_json_read_u64(&incarnation, request, "incarnation");
    if (status.code) {
        gs_rpc_reply(call, status, NULL);
        return;
    }
    for (int i = 0; agent && i < agent->num_slots; i++) {
        if (agent->slots[i].incarnation == incarnation) agent->slots[i] = (gs_agent_slot){0};
    }
    coordinator->schedule_needed = true;
    gs_member *member = gs_u64_map_get(&coordinator->members, incarnation);
    if (member && !member->exited) {
        gs_member_exited(coordinator, member, (int)gs_json_int_or(request, "exit_code", -1),
                         (int)gs_json_int_or(request, "signal", 0), gs_json_get(request, "log_tail"));
    }
    gs_rpc_reply(call, gs_ok(), gs_json_new_object());
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
        gs_json_set_int(entry, "rank", slot->rank);
        gs_json_set_int(entry, "slot", i);
        gs_json_set_int(entry, "pid", slot->pid);
        gs_json_push(unknown, entry);
    }
    return unknown;
}

static gs_json *slots_to_json(gs_coordinator *coordinator, const gs_agent *agent, int *busy) {
    gs_json *jobs = gs_json_new_array();
    for (int i = 0; i < agent->num_slots; i++) {
        if (!agent->slots[i].incarnation) continue;
        (*busy)++;
        gs_member *member = gs_u64_map_get(&coordinator->members, agent->slots[i].incarnation);
        if (!member) continue;
        gs_json *entry = gs_json_new_object();
        gs_json_set_string(entry, "job", member->job->id_text);
        if (member->rank >= 0) gs_json_set_int(entry, "rank", member->rank);
        gs_json_set_int(entry, "slot", i);
        gs_json_push(jobs, entry);
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

void gs_list_workers(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request) {
    (void)peer;
    (void)request;
    gs_coordinator *coordinator = ctx;
    int64_t now_ns = gs_now_ns();
    gs_json *items = gs_json_new_array();
    for (size_t i = 0; i < coordinator->num_agents; i++) {
        const gs_agent *agent = coordinator->agents[i];
        int busy = 0;
        gs_json *jobs = slots_to_json(coordinator, agent, &busy);
        gs_json *item = gs_json_new_object();
        gs_json_set_string(item, "id", agent->name);
        gs_json_set_string(item, "host", agent->host);
        gs_json_set_string(item, "state", !agent->stream ? "lost" : agent->is_leaving ? "leaving" : busy ? "running" : "idle");
        gs_json_set_int(item, "slots", agent->num_slots);
        gs_json_set_int(item, "slots_busy", busy);
        gs_json_set_int(item, "cores", agent->cores);
        set_devices(item, agent);
        gs_json_set_string(item, "build", agent->build);
        gs_json_set_bool(item, "connected", agent->stream != NULL);
        gs_json_set_double(item, "heartbeat_age_seconds",
                           (double)(now_ns - agent->heard_ns) / GS_NS_PER_SEC);
        gs_json_set(item, "jobs", jobs);
        gs_json_set(item, "unknown", unknown_to_json(agent));
        gs_json_push(items, item);
    }
    gs_json *reply = gs_json_new_object();
    gs_json_set(reply, "items", items);
    gs_rpc_reply(call, gs_ok(), reply);
}
