#include "worker/agent/rank_orders.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "rpc/schema/messages.h"
#include "worker/agent/rank_key.h"
#include "worker/exit_code.h"

// The agent's own directory, where it has one, takes the place of the coordinator's path.
static void set_directories(const gs_host_agent *agent, gs_json *document, const gs_json *item) {
    const char *own = agent->options->checkpoints, *job = gs_json_string_or(item, "job", "");
    const char *resume = gs_json_string_or(gs_json_get(item, "resume"), "directory", "");
    const char *directory = gs_json_string_or(item, "checkpoints_dir", "");
    char path[PATH_MAX], resume_path[PATH_MAX] = "";
    if (*own) {
        snprintf(path, sizeof path, "%s/%s", own, job);
        directory = path;
    }
    const char *slash = strrchr(resume, '/');
    if (*resume && (*own || !slash)) {
        snprintf(resume_path, sizeof resume_path, "%s/%s", directory, slash ? slash + 1 : resume);
        resume = resume_path;
    }
    gs_json_set_string(document, "checkpoints_dir", directory);
    gs_json_set_string(document, "resume", resume);
}

// A trainer on the CPU sees no GPU: nothing in it can take memory there.
static void set_device(const gs_host_agent *agent, gs_json *document, const gs_json *item) {
    bool on_gpu = strcmp(gs_json_string_or(item, "device", "cpu"), "cuda") == 0;
    int slot = (int)gs_json_int_or(item, "slot", 0);
    char visible[4096] = "";
    if (on_gpu) gs_host_devices_visible(visible, sizeof visible, &agent->devices, slot);
    gs_json_set_string(document, "device", on_gpu ? "cuda" : "cpu");
    gs_json_set_int(document, "num_devices",
                    on_gpu ? gs_host_devices_of_slot(&agent->devices, slot) : 0);
    gs_json_set_string(document, "visible_devices", visible);
}

static gs_json *encode_launch(const gs_host_agent *agent, const gs_json *item) {
    static const char *const copied[] = {"job",         "job_name",     "slot", "rank_hint",
                                         "incarnation", "launch_token", "spec", "cluster",
                                         "last_generation", "numbers", "orphan_seconds", NULL};
    gs_json *out = gs_json_new_object();
    for (const char *const *name = copied; *name; name++) {
        const gs_json *member = gs_json_get(item, *name);
        if (member) gs_json_set(out, *name, gs_json_copy(member));
    }
    const gs_json *world = gs_json_get(gs_json_get(item, "spec"), "world");
    int64_t threads = gs_json_int_or(world, "threads_per_rank", 0);
    if (threads <= 0) threads = gs_topology_threads_per_slot(&agent->topology, agent->num_slots);
    gs_json_set_int(out, "threads", threads);
    gs_json_set_string(out, "coordinator", agent->options->coordinator);
    gs_json_set_string(out, "worker", agent->name);
    gs_json_set_string(out, "host", agent->host);
    gs_json_set_string(out, "boot_id", agent->boot_id);
    gs_json_set_string(out, "data_root", agent->data_root);
    gs_json_set_string(out, "data_address", agent->options->data_address ? agent->options->data_address : "");
    gs_json_set_string(out, "log_level", agent->options->log_level);
    gs_place_sight sight = gs_shared_place_sight(agent->place);
    gs_json_set_bool(out, "apart", gs_place_sight_is_apart(&sight));
    set_directories(agent, out, item);
    set_device(agent, out, item);
    return out;
}

// A trainer that cannot be started has exited: the coordinator must not wait for its Hello.
static void report_not_started(gs_host_agent *agent, const gs_json *item, int exit_code,
                               const char *reason) {
    gs_json *exited = gs_json_new_object(), *tail = gs_json_new_array();
    static const char *const copied[] = {"slot", "job", "incarnation", NULL};
    for (const char *const *name = copied; *name; name++) {
        const gs_json *member = gs_json_get(item, *name);
        if (member) gs_json_set(exited, *name, gs_json_copy(member));
    }
    gs_json_push(tail, gs_json_new_string(reason));
    gs_json_set_int(exited, "rank", gs_json_int_or(item, "rank_hint", 0));
    gs_json_set_int(exited, "generation", 0);
    gs_json_set_int(exited, "exit_code", exit_code);
    gs_json_set_int(exited, "signal", 0);
    gs_json_set_string(exited, "host", agent->host);
    gs_json_set(exited, "log_tail", tail);
    gs_agent_reports_add_exit(agent->reports, exited);
    gs_log_warn("trainer not started", "job=%s reason=\"%s\"", gs_json_string_or(item, "job", ""),
                reason);
}

static gs_slot *find_slot(gs_host_agent *agent, const gs_json *item) {
    int64_t index = gs_json_int_or(item, "slot", -1);
    return index >= 0 && index < agent->num_slots ? &agent->slots[index] : NULL;
}

// What a job wants and may not have here, a secret for one, is for a person; everything else may be better another time.
static gs_exit_code exit_code_of_start(gs_status status) {
    bool is_for_people = status.code == GS_FAILED_PRECONDITION || status.code == GS_NOT_FOUND ||
                         status.code == GS_PERMISSION_DENIED || status.code == GS_INVALID_ARGUMENT;
    return is_for_people ? GS_EXIT_CONFIGURATION : GS_EXIT_SYSTEM;
}

static void start_rank(gs_host_agent *agent, const gs_json *item) {
    gs_slot *slot = find_slot(agent, item);
    uint64_t incarnation = 0;
    gs_status status = gs_json_read_u64(&incarnation, item, "incarnation");
    if (slot && gs_slot_busy(slot) && slot->incarnation == incarnation) return;  // a repeat
    if (status.code || !slot || gs_slot_busy(slot)) {
        report_not_started(agent, item, GS_EXIT_CONFIGURATION,
                           slot ? "the slot is busy" : "no such slot");
        return;
    }
    if (agent->draining) {
        report_not_started(agent, item, GS_EXIT_TEMPORARY, "the worker is shutting down");
        return;
    }
    gs_json *document = encode_launch(agent, item);
    gs_key_file key = {0};
    if (*agent->key.path) {
        slot->incarnation = incarnation;
        status = gs_rank_key_choose(&key, slot, &agent->key.key, agent->name, agent->gives_rank_keys);
        if (!status.code) gs_rank_key_tell(agent->client, slot, 1);  // before it comes with it
    }
    if (!status.code) status = gs_slot_start(slot, document, *agent->key.path ? &key : NULL);
    gs_key_file_wipe(&key);
    gs_json_release(document);
    if (status.code) {
        slot->incarnation = 0;
        report_not_started(agent, item, exit_code_of_start(status), status.message);
        return;
    }
    gs_log_info("trainer started", "job=%s slot=%d pid=%d", slot->job, slot->index, (int)slot->pid);
}

// The trainer that an item is about; NULL: it is not there any more.
static gs_slot *find_trainer(gs_host_agent *agent, const gs_json *item) {
    gs_slot *slot = find_slot(agent, item);
    uint64_t incarnation = 0;
    gs_status status = gs_json_read_u64(&incarnation, item, "incarnation");
    return !status.code && slot && gs_slot_busy(slot) && slot->incarnation == incarnation ? slot : NULL;
}

// Who wants it stopped may not know that it has exited: a hello may say that it runs and be read behind the report of its end.
static void report_gone(gs_host_agent *agent, const gs_json *item) {
    uint64_t incarnation = 0;
    if (gs_json_read_u64(&incarnation, item, "incarnation").code) return;
    gs_json *exited = gs_json_new_object();
    gs_json_set_int(exited, "slot", gs_json_int_or(item, "slot", -1));
    gs_json_set_u64(exited, "incarnation", incarnation);
    gs_json_set_int(exited, "exit_code", -1);
    gs_agent_reports_add_exit(agent->reports, exited);
}

static void stop_rank(gs_host_agent *agent, const gs_json *item) {
    gs_slot *slot = find_trainer(agent, item);
    if (!slot) {
        report_gone(agent, item);
        return;
    }
    bool kill_now = strcmp(gs_json_string_or(item, "signal", "term"), "kill") == 0;
    gs_slot_stop(slot, kill_now, gs_json_double_or(item, "grace_seconds", 0));
}

// Checkpoints that lie where this worker was told to put them are found by the path that it has.
static void describe_rank(gs_host_agent *agent, const gs_json *item) {
    const gs_slot *slot = find_trainer(agent, item);
    if (!slot) return;
    gs_json *out = gs_slot_describe_fully(slot);
    if (*agent->options->checkpoints) gs_json_remove(out, "checkpoints_dir");
    gs_rpc_send(agent->client, GS_DESCRIBED, out);
    gs_json_release(out);
}

static void adopt_rank(gs_host_agent *agent, const gs_json *item) {
    gs_slot *slot = find_trainer(agent, item);
    if (!slot) return;
    snprintf(slot->cluster, sizeof slot->cluster, "%s", gs_json_string_or(item, "cluster", ""));
    gs_launch_page_put_cluster(slot->page, slot->cluster);
    gs_log_info("trainer adopted", "job=%s slot=%d cluster=%s", slot->job, slot->index, slot->cluster);
}

bool gs_rank_orders_take(gs_host_agent *agent, const char *type, const gs_json *item) {
    if (strcmp(type, "start_rank") == 0) start_rank(agent, item);
    else if (strcmp(type, "stop_rank") == 0) stop_rank(agent, item);
    else if (strcmp(type, "describe_rank") == 0) describe_rank(agent, item);
    else if (strcmp(type, "adopt_rank") == 0) adopt_rank(agent, item);
    else return false;
    return true;
}
