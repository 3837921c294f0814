#include "worker/agent/agent.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/config.h"
#include "core/log.h"
#include "core/random.h"
#include "rpc/client/rpc_client.h"
#include "rpc/schema/messages.h"
#include "worker/agent/agent_reports.h"
#include "worker/agent/confinement.h"
#include "worker/agent/device_probe.h"
#include "worker/agent/examination.h"
#include "worker/agent/host_devices.h"
#include "worker/agent/lookout.h"
#include "worker/agent/rank_key.h"
#include "worker/agent/shared_place.h"
#include "worker/agent/slot.h"
#include "worker/agent/topology.h"
#include "worker/own_key.h"
#include "worker/seen_coordinator.h"
#include "worker/exit_code.h"

#define MAX_SLOTS 256
// The stream has no descriptor: commands are looked for this often.
#define TURN_MS 10
#define MAX_CADENCE_SECONDS 60
#define FIRST_RETRY_NS (100 * GS_NS_PER_MS)
#define LAST_RETRY_NS (2 * GS_NS_PER_SEC)
// A coordinator that refuses a worker whose trainers run is asked this often.
#define REFUSED_RETRY_NS (2 * GS_NS_PER_SEC)
// A name that is taken may be our own old connection: it is given this long to be noticed.
#define NAME_TAKEN_NS (10 * GS_NS_PER_SEC)
#define FLUSH_SECONDS 2.0
// Trainers of an agent that hears nobody: their checkpoints are looked at behind so long.
#define ALONE_NS GS_NS_PER_SEC
#define ORPHAN_SECONDS 600.0  // of a coordinator that has not told it
// A driver without its persistence daemon takes seconds for each GPU.
#define PROBE_SECONDS 60.0

typedef struct host_agent {
    gs_own_key key;
    const gs_agent_options *options;
    char name[64], host[128], boot_id[64], network[64], data_root[PATH_MAX];
    gs_topology topology;
    gs_host_devices devices;
    uint64_t incarnation;
    gs_rpc_context *context;
    gs_rpc_client *client;
    gs_agent_reports *reports;
    gs_lookout *lookout;
    gs_shared_place *place;
    gs_examination *examination;
    gs_confinement confinement;
    gs_slot *slots;
    int num_slots, signal_fd;

    gs_rpc_stream *stream;
    bool welcomed, told_silence, told_refusal, gives_rank_keys;
    gs_seen_coordinator seen;
    int64_t next_hello_ns, retry_ns, heartbeat_ns, next_heartbeat_ns;
    int64_t heard_ns, alone_since_ns, name_taken_since_ns;
    int64_t turned_ns, stood_ns;  // its last turn; when it woke up behind a standstill, until it has heard a coordinator: 0
    bool draining, stopped;
    int exit_code;
} host_agent;

static void read_line(char *text, size_t text_bytes, const char *path) {
    FILE *file = fopen(path, "re");
    if (!file) return;
    if (fgets(text, (int)text_bytes, file)) text[strcspn(text, "\n")] = '\0';
    fclose(file);
}

// [A-Za-z0-9._-]{1,63}
static void set_name(host_agent *agent, const char *wanted) {
    size_t length = 0;
    for (const char *c = wanted; *c && length < 63; c++) {
        bool allowed = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                       (*c >= '0' && *c <= '9') || *c == '.' || *c == '_' || *c == '-';
        agent->name[length++] = allowed ? *c : '-';
    }
    if (length == 0) agent->name[length++] = '-';
    agent->name[length] = '\0';
}

static gs_status identify(host_agent *agent) {
    const gs_agent_options *options = agent->options;
    if (options->slots < 0 || options->slots > MAX_SLOTS) {
        return gs_error(GS_INVALID_ARGUMENT, "slots: %lld is not in 0 to %d",
                        (long long)options->slots, MAX_SLOTS);
    }
    if (gethostname(agent->host, sizeof agent->host - 1) < 0) {
        return gs_error_from_errno(errno, "host name");
    }
    gs_own_key_options key = {.path = options->key, .enrol = options->enrol, .name = options->name, .host = agent->host,
                              .coordinator = options->coordinator, .context = agent->context};
    GS_TRY(gs_own_key_settle(&agent->key, &key));
    set_name(agent, *options->name ? options->name : agent->key.name);
    read_line(agent->boot_id, sizeof agent->boot_id, "/proc/sys/kernel/random/boot_id");
    // Containers of one host may have its name, and each a network of its own.
    ssize_t bytes = readlink("/proc/self/ns/net", agent->network, sizeof agent->network - 1);
    agent->network[bytes > 0 ? bytes : 0] = '\0';
    struct stat facts;
    if (!realpath(options->data_root, agent->data_root) || stat(agent->data_root, &facts) < 0) {
        return gs_error_from_errno(errno, "data_root %s", options->data_root);
    }
    if (!S_ISDIR(facts.st_mode)) {
        return gs_error(GS_INVALID_ARGUMENT, "data_root %s is no directory", options->data_root);
    }
    agent->topology = gs_topology_read();
    agent->incarnation = gs_random_from_system();
    return gs_ok();
}

static gs_status find_devices(host_agent *agent) {
    const gs_agent_options *options = agent->options;
    gs_json *probe = NULL;
    gs_status asked = gs_ok();
    bool none = !options->devices || strcmp(options->devices, "none") == 0;
    if (!none) asked = gs_device_probe_ask(&probe, gs_deadline_in_seconds(PROBE_SECONDS));
    gs_status status = gs_host_devices_choose(&agent->devices, options->devices,
                                              options->devices_per_slot, probe, asked);
    gs_json_release(probe);
    if (status.code) return status;
    if (agent->devices.count)
        gs_log_info("devices", "worker=%s gpus=%d per_slot=%d nccl=%s", agent->name,
                    agent->devices.count, agent->devices.per_slot,
                    agent->devices.nccl[0] ? agent->devices.nccl : "none");
    else
        gs_log_info("no devices", "worker=%s reason=\"%s\"", agent->name, agent->devices.reason);
    return gs_ok();
}

static int count_busy(const host_agent *agent) {
    int busy = 0;
    for (int i = 0; i < agent->num_slots; i++) busy += gs_slot_busy(&agent->slots[i]);
    return busy;
}

static gs_json *encode_hello(const host_agent *agent) {
    gs_json *out = gs_json_new_object(), *running = gs_json_new_array();
    for (int i = 0; i < agent->num_slots; i++) {
        if (gs_slot_busy(&agent->slots[i])) gs_json_push(running, gs_slot_describe(&agent->slots[i]));
    }
    gs_json_set_string(out, "worker", agent->name);
    gs_json_set_string(out, "host", agent->host);
    gs_json_set_string(out, "boot_id", agent->boot_id);
    gs_json_set_string(out, "network", agent->network);
    gs_json_set_int(out, "pid", getpid());
    gs_json_set_u64(out, "incarnation", agent->incarnation);
    gs_json_set_string(out, "build", GRADSYNC_VERSION);
    gs_json_set_int(out, "proto_least", GS_PROTOCOL_LEAST);
    gs_json_set_int(out, "proto_most", GS_PROTOCOL_MOST);
    gs_json_set_int(out, "slots", agent->num_slots);
    gs_json_set_int(out, "cores", agent->topology.usable_cores);
    gs_json_set_string(out, "data_root", agent->data_root);
    gs_json_set_bool(out, "looks_out", true);
    gs_json_set_bool(out, "tells_place", true);
    gs_json_set_bool(out, "shows_tokens", true);
    gs_json_set_bool(out, "takes_cadence", true);
    gs_host_devices_describe(out, &agent->devices);
    if (agent->draining) gs_json_set_bool(out, "leaving", true);
    gs_seen_coordinator_say(&agent->seen, out);
    gs_json_set(out, "running", running);
    return out;
}

static void stop(host_agent *agent, int exit_code) {
    agent->stopped = true;
    agent->exit_code = exit_code;
}

// A worker without trainers has nothing to stay for. With trainers it outlives the refusal: they end with
// it, and whoever refuses may be the wrong coordinator, or of another version.
static void take_refusal(host_agent *agent, gs_status status) {
    int busy = count_busy(agent);
    if (busy == 0) {
        gs_log_error("coordinator refused this worker", "worker=%s reason=\"%s\"", agent->name,
                     status.message);
        stop(agent, GS_EXIT_CONFIGURATION);
        return;
    }
    agent->next_hello_ns = gs_now_ns() + REFUSED_RETRY_NS;
    if (agent->told_refusal) return;
    agent->told_refusal = true;
    gs_log_error("coordinator refused this worker; its trainers go on",
                 "worker=%s trainers=%d reason=\"%s\"", agent->name, busy, status.message);
}

static void lose_stream(host_agent *agent, gs_status status) {
    int64_t now_ns = gs_now_ns();
    gs_rpc_stream_close(agent->stream);
    agent->stream = NULL;
    if (agent->welcomed) {
        gs_log_warn("coordinator lost", "worker=%s reason=\"%s\"", agent->name, status.message);
        agent->retry_ns = FIRST_RETRY_NS;
    }
    agent->welcomed = false;
    agent->next_hello_ns = now_ns + agent->retry_ns;
    agent->retry_ns = agent->retry_ns * 2 < LAST_RETRY_NS ? agent->retry_ns * 2 : LAST_RETRY_NS;
    if (status.code == GS_ALREADY_EXISTS && agent->name_taken_since_ns == 0) {
        agent->name_taken_since_ns = now_ns;
    }
    bool taken = status.code == GS_ALREADY_EXISTS &&
                 now_ns - agent->name_taken_since_ns > NAME_TAKEN_NS;
    bool refused = status.code == GS_INVALID_ARGUMENT || status.code == GS_FAILED_PRECONDITION ||
                   status.code == GS_PERMISSION_DENIED || status.code == GS_UNAUTHENTICATED;
    if (taken || refused) take_refusal(agent, status);
}

static void say_hello(host_agent *agent) {
    if (agent->stream || gs_now_ns() < agent->next_hello_ns) return;
    gs_json *request = encode_hello(agent);
    gs_status status = gs_rpc_stream_open(&agent->stream, agent->client, GS_AGENT_HELLO, request);
    gs_json_release(request);
    if (status.code) {
        agent->stream = NULL;
        lose_stream(agent, status);
    }
}

// How often it is to be heard.
static void take_cadence(host_agent *agent, const gs_json *item) {
    double seconds = gs_json_double_or(item, "heartbeat_seconds", 0.1);
    if (seconds >= 0.01 && seconds <= MAX_CADENCE_SECONDS)
        agent->heartbeat_ns = (int64_t)(seconds * (double)GS_NS_PER_SEC);
}

// A coordinator of before lets trainers in by their worker's key alone.
static void give_keys(host_agent *agent) {
    for (int i = 0; *agent->key.path && i < agent->num_slots; i++) {
        gs_slot *slot = &agent->slots[i];
        gs_key_file key = {0};
        if (!gs_slot_busy(slot)) continue;
        gs_status status = gs_rank_key_choose(&key, slot, &agent->key.key, agent->name, agent->gives_rank_keys);
        if (!status.code) gs_launch_page_put_key(slot->page, &key);
        gs_key_file_wipe(&key);
    }
    if (agent->gives_rank_keys) gs_rank_key_tell(agent->client, agent->slots, agent->num_slots);
}

static void take_welcome(host_agent *agent, const gs_json *item) {
    take_cadence(agent, item);
    agent->gives_rank_keys = gs_json_bool_or(item, "rank_keys", false);
    give_keys(agent);
    gs_seen_coordinator_note(&agent->seen, item);
    const char *own = agent->options->checkpoints;
    uint64_t life = 0;
    if (!gs_json_read_u64(&life, item, "coordinator_life").code)
        gs_shared_place_set(agent->place, *own ? own : gs_json_string_or(item, "checkpoints_dir", ""),
                            gs_json_string_or(item, "cluster", ""), life);
    agent->welcomed = true;
    agent->stood_ns = 0;
    agent->told_silence = agent->told_refusal = false;
    agent->name_taken_since_ns = 0;
    gs_log_info("registered", "worker=%s slots=%d cores=%d coordinator=%s", agent->name,
                agent->num_slots, agent->topology.usable_cores, agent->options->coordinator);
}

// The agent's own directory, where it has one, takes the place of the coordinator's path.
static void set_directories(const host_agent *agent, gs_json *document, const gs_json *item) {
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
static void set_device(const host_agent *agent, gs_json *document, const gs_json *item) {
    bool on_gpu = strcmp(gs_json_string_or(item, "device", "cpu"), "cuda") == 0;
    int slot = (int)gs_json_int_or(item, "slot", 0);
    char visible[4096] = "";
    if (on_gpu) gs_host_devices_visible(visible, sizeof visible, &agent->devices, slot);
    gs_json_set_string(document, "device", on_gpu ? "cuda" : "cpu");
    gs_json_set_int(document, "num_devices",
                    on_gpu ? gs_host_devices_of_slot(&agent->devices, slot) : 0);
    gs_json_set_string(document, "visible_devices", visible);
}

// What the coordinator goes by is not seen here: its directory is another one.
static bool is_apart(const gs_place_sight *sight) {
    return strcmp(sight->state, "missing") == 0 || strcmp(sight->state, "other") == 0;
}

static gs_json *encode_launch(const host_agent *agent, const gs_json *item) {
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
    gs_json_set_bool(out, "apart", is_apart(&sight));
    set_directories(agent, out, item);
    set_device(agent, out, item);
    return out;
}

// A trainer that cannot be started has exited: the coordinator must not wait for its Hello.
static void report_not_started(host_agent *agent, const gs_json *item, int exit_code,
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

static gs_slot *find_slot(host_agent *agent, const gs_json *item) {
    int64_t index = gs_json_int_or(item, "slot", -1);
    return index >= 0 && index < agent->num_slots ? &agent->slots[index] : NULL;
}

// What a job wants and may not have here, a secret for one, is for a person; everything else may be better another time.
static gs_exit_code exit_code_of_start(gs_status status) {
    bool is_for_people = status.code == GS_FAILED_PRECONDITION || status.code == GS_NOT_FOUND ||
                         status.code == GS_PERMISSION_DENIED || status.code == GS_INVALID_ARGUMENT;
    return is_for_people ? GS_EXIT_CONFIGURATION : GS_EXIT_SYSTEM;
}

static void start_rank(host_agent *agent, const gs_json *item) {
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
static gs_slot *find_trainer(host_agent *agent, const gs_json *item) {
    gs_slot *slot = find_slot(agent, item);
    uint64_t incarnation = 0;
    gs_status status = gs_json_read_u64(&incarnation, item, "incarnation");
    return !status.code && slot && gs_slot_busy(slot) && slot->incarnation == incarnation ? slot : NULL;
}

// Who wants it stopped may not know that it has exited: a hello may say that it runs and be read behind the report of its end.
static void report_gone(host_agent *agent, const gs_json *item) {
    uint64_t incarnation = 0;
    if (gs_json_read_u64(&incarnation, item, "incarnation").code) return;
    gs_json *exited = gs_json_new_object();
    gs_json_set_int(exited, "slot", gs_json_int_or(item, "slot", -1));
    gs_json_set_u64(exited, "incarnation", incarnation);
    gs_json_set_int(exited, "exit_code", -1);
    gs_agent_reports_add_exit(agent->reports, exited);
}

static void stop_rank(host_agent *agent, const gs_json *item) {
    gs_slot *slot = find_trainer(agent, item);
    if (!slot) {
        report_gone(agent, item);
        return;
    }
    bool kill_now = strcmp(gs_json_string_or(item, "signal", "term"), "kill") == 0;
    gs_slot_stop(slot, kill_now, gs_json_double_or(item, "grace_seconds", 0));
}

// Checkpoints that lie where this worker was told to put them are found by the path that it has.
static void describe_rank(host_agent *agent, const gs_json *item) {
    const gs_slot *slot = find_trainer(agent, item);
    if (!slot) return;
    gs_json *out = gs_slot_describe_fully(slot);
    if (*agent->options->checkpoints) gs_json_remove(out, "checkpoints_dir");
    gs_rpc_send(agent->client, GS_DESCRIBED, out);
    gs_json_release(out);
}

static void adopt_rank(host_agent *agent, const gs_json *item) {
    gs_slot *slot = find_trainer(agent, item);
    if (!slot) return;
    snprintf(slot->cluster, sizeof slot->cluster, "%s", gs_json_string_or(item, "cluster", ""));
    gs_launch_page_put_cluster(slot->page, slot->cluster);
    gs_log_info("trainer adopted", "job=%s slot=%d cluster=%s", slot->job, slot->index, slot->cluster);
}

static void take_item(host_agent *agent, const gs_json *item) {
    const char *type = gs_json_string_or(item, "type", "");
    if (strcmp(type, "welcome") == 0) take_welcome(agent, item);
    else if (strcmp(type, "cadence") == 0) take_cadence(agent, item);
    else if (strcmp(type, "start_rank") == 0) start_rank(agent, item);
    else if (strcmp(type, "stop_rank") == 0) stop_rank(agent, item);
    else if (strcmp(type, "describe_rank") == 0) describe_rank(agent, item);
    else if (strcmp(type, "adopt_rank") == 0) adopt_rank(agent, item);
    else if (strcmp(type, "examine") == 0 || strcmp(type, "reach") == 0 || strcmp(type, "sum") == 0 || strcmp(type, "exchanged") == 0 ||
             strcmp(type, "examined") == 0)
        gs_examination_take(agent->examination, item);
}

static void read_stream(host_agent *agent) {
    while (agent->stream) {
        gs_json *item = NULL;
        gs_status status = gs_rpc_stream_next(agent->stream, &item, (gs_deadline){0});
        if (status.code == GS_DEADLINE_EXCEEDED) return;
        if (!status.code && item) {
            take_item(agent, item);
            gs_json_release(item);
            continue;
        }
        if (!status.code) status = gs_error(GS_UNAVAILABLE, "the coordinator ended the stream");
        lose_stream(agent, status);
    }
}

static void send_heartbeat(host_agent *agent) {
    int64_t now_ns = gs_now_ns();
    if (!agent->welcomed || now_ns < agent->next_heartbeat_ns) return;
    agent->next_heartbeat_ns = now_ns + agent->heartbeat_ns;
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "slots_busy", count_busy(agent));
    if (agent->draining) gs_json_set_bool(out, "leaving", true);
    gs_place_sight sight = gs_shared_place_sight(agent->place);
    if (strcmp(sight.state, "same") == 0) gs_json_set_string(out, "place", "same");
    else if (is_apart(&sight)) gs_json_set_string(out, "place", "apart");
    gs_rpc_send(agent->client, GS_AGENT_HEARTBEAT, out);
    gs_json_release(out);
}

static void watch_silence(host_agent *agent) {
    int64_t now_ns = gs_now_ns();
    if (agent->welcomed) agent->heard_ns = now_ns;
    int64_t silent_ns = now_ns - agent->heard_ns;
    if (silent_ns > 5 * GS_NS_PER_SEC && !agent->told_silence) {
        agent->told_silence = true;
        gs_log_warn("no coordinator yet", "worker=%s coordinator=%s", agent->name,
                    agent->options->coordinator);
    }
    double limit = agent->options->coordinator_timeout_seconds;
    if (limit <= 0 || (double)silent_ns < limit * (double)GS_NS_PER_SEC || count_busy(agent)) return;
    gs_log_error("no coordinator for too long", "worker=%s coordinator=%s seconds=%.0f",
                 agent->name, agent->options->coordinator, limit);
    stop(agent, GS_EXIT_UNREACHABLE);
}

// Nobody can tell its ranks anything but in their checkpoint directory: there it says that they live, and finds out that
// others have taken their place. Who sees neither a coordinator nor that directory takes no step until it does.
static void look_out(host_agent *agent, gs_slot *slot, bool alone, int64_t now_ns) {
    const gs_lookout_place place = {.job = slot->job,
                                    .directory = gs_json_string_or(slot->document, "checkpoints_dir", ""),
                                    .cluster = gs_json_string_or(slot->document, "cluster", ""),
                                    .generation = atomic_load(&slot->page->generation)};
    const gs_lookout_sight sight = gs_lookout_ask(agent->lookout, &place, alone);
    if (alone && sight.is_over) {
        if (!slot->kill_at_ns)
            gs_log_warn("others have taken the place of a trainer", "job=%s slot=%d generation=%u", slot->job, slot->index,
                        place.generation);
        gs_slot_stop(slot, true, 0);
        return;
    }
    bool holds = alone && gs_lookout_holds(&sight, slot->is_held, agent->alone_since_ns, now_ns);
    if (!holds && gs_lookout_leads(&sight, agent->stood_ns, now_ns)) atomic_store(&slot->page->pulse_ns, now_ns);
    if (holds != slot->is_held && !slot->kill_at_ns)
        gs_log_warn(holds ? "a trainer stands still: neither a coordinator nor its checkpoints are seen" : "a trainer goes on",
                    "job=%s slot=%d generation=%u", slot->job, slot->index, place.generation);
    gs_slot_hold(slot, holds);
    double limit = gs_json_double_or(slot->document, "orphan_seconds", ORPHAN_SECONDS);
    if (!gs_slot_held_longer(slot, limit, GS_STAND_MARGIN_SECONDS)) return;
    gs_log_warn("a trainer stood still for too long and is ended", "job=%s slot=%d", slot->job, slot->index);
    gs_slot_stop(slot, false, agent->options->grace_seconds);
}

static void look_out_for_all(host_agent *agent, int64_t now_ns) {
    bool heard = agent->welcomed && gs_rpc_client_connected(agent->client);
    if (heard) agent->alone_since_ns = 0;
    else if (!agent->alone_since_ns) agent->alone_since_ns = now_ns;
    bool alone = !heard && (agent->stood_ns || now_ns - agent->alone_since_ns >= ALONE_NS);
    for (int i = 0; i < agent->num_slots; i++)
        if (gs_slot_busy(&agent->slots[i])) look_out(agent, &agent->slots[i], alone, now_ns);
    gs_lookout_forget_unasked(agent->lookout);
}

static void take_signal(host_agent *agent) {
    struct signalfd_siginfo facts;
    if (read(agent->signal_fd, &facts, sizeof facts) != (ssize_t)sizeof facts) return;
    bool again = agent->draining;
    agent->draining = true;
    // Before any of its trainers has ended: nothing is to be started in its place here.
    agent->next_heartbeat_ns = 0;
    send_heartbeat(agent);
    gs_log_info("shutting down", "worker=%s trainers=%d", agent->name, count_busy(agent));
    for (int i = 0; i < agent->num_slots; i++) {
        gs_slot_stop(&agent->slots[i], again, agent->options->grace_seconds);
    }
}

// Waits for the signal, for ends and output of trainers, at most one turn.
static void wait_for_events(host_agent *agent, struct pollfd *fds) {
    int count = 1;
    fds[0] = (struct pollfd){.fd = agent->signal_fd, .events = POLLIN};
    for (int i = 0; i < agent->num_slots; i++) {
        const gs_slot *slot = &agent->slots[i];
        fds[count++] = (struct pollfd){.fd = slot->pidfd, .events = POLLIN};
        fds[count++] = (struct pollfd){.fd = slot->outputs[0].fd, .events = POLLIN};
        fds[count++] = (struct pollfd){.fd = slot->outputs[1].fd, .events = POLLIN};
    }
    if (poll(fds, (nfds_t)count, TURN_MS) <= 0) return;
    if (fds[0].revents) take_signal(agent);
    for (int i = 0; i < agent->num_slots; i++) {
        gs_slot *slot = &agent->slots[i];
        const struct pollfd *of = &fds[1 + 3 * i];
        if (of[1].revents) gs_slot_read(slot, &slot->outputs[0]);
        if (of[2].revents) gs_slot_read(slot, &slot->outputs[1]);
        if (of[0].revents) gs_slot_reap(slot, agent->host);
    }
}

static gs_status open_signals(host_agent *agent) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    agent->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return agent->signal_fd < 0 ? gs_error_from_errno(errno, "signalfd") : gs_ok();
}

// systemd says by a variable where it has put credentials.
static gs_status confine(host_agent *agent) {
    const gs_agent_options *options = agent->options;
    const char *credentials = getenv("CREDENTIALS_DIRECTORY");
    gs_confinement_options confinement = {.run_as = options->run_as ? options->run_as : "",
                                          .cgroup = options->cgroup ? options->cgroup : "",
                                          .secrets = options->secrets ? options->secrets : "",
                                          .pass_environment = options->pass_environment,
                                          .open_files = options->open_files_per_slot,
                                          .core_files = options->core_files};
    // The worker's key speaks for all of its ranks: no trainer of the same user reads it here.
    if (*agent->key.path && !options->core_files) prctl(PR_SET_DUMPABLE, 0);
    if (!*confinement.secrets && credentials) confinement.secrets = credentials;
    int num_withheld = 0;
    if (*agent->key.path) confinement.withheld[num_withheld++] = agent->key.path;
    if (options->enrol && *options->enrol) confinement.withheld[num_withheld++] = options->enrol;
    bool has_limit = options->memory_per_slot && *options->memory_per_slot;
    if (has_limit && !gs_parse_bytes(&confinement.memory_bytes, options->memory_per_slot))
        return gs_error(GS_INVALID_ARGUMENT, "--memory-per-slot: \"%s\" is no size", options->memory_per_slot);
    GS_TRY(gs_confinement_open(&agent->confinement, &confinement));
    // A trainer of another user is one of those who may connect from this machine; without keys nobody asks who does.
    if (agent->confinement.changes_user && !*agent->key.path)
        gs_log_warn("trainers may ask the coordinator for anything: --require-key and --require-token there, --key here", "run_as=%s", options->run_as);
    return gs_ok();
}

static gs_status open_agent(host_agent *agent) {
    GS_TRY(gs_rpc_context_create(&agent->context));
    GS_TRY(identify(agent));
    GS_TRY(confine(agent));
    GS_TRY(find_devices(agent));
    GS_TRY(open_signals(agent));
    gs_rpc_client_options options = {.endpoint = agent->options->coordinator,
                                     .incarnation = agent->incarnation,
                                     .key_path = agent->key.path};
    GS_TRY(gs_rpc_client_open(&agent->client, agent->context, &options));
    GS_TRY(gs_agent_reports_create(&agent->reports, agent->client, 0));
    GS_TRY(gs_lookout_start(&agent->lookout));
    GS_TRY(gs_shared_place_start(&agent->place));
    GS_TRY(gs_examination_start(&agent->examination, agent->client,
                                &(gs_examined_host){.data_address = agent->options->data_address ? agent->options->data_address : "",
                                                    .coordinator = agent->options->coordinator,
                                                    .data_root = agent->data_root,
                                                    .place = agent->place}));
    int num_slots = (int)agent->options->slots;
    if (num_slots == 0) num_slots = gs_host_devices_slots(&agent->devices);
    agent->slots = calloc((size_t)num_slots, sizeof *agent->slots);
    if (!agent->slots) return gs_error(GS_RESOURCE_EXHAUSTED, "slots: out of memory");
    agent->num_slots = num_slots;
    for (int i = 0; i < agent->num_slots; i++) gs_slot_init(&agent->slots[i], i, agent->reports, &agent->confinement);
    agent->retry_ns = FIRST_RETRY_NS;
    agent->heartbeat_ns = 100 * GS_NS_PER_MS;
    agent->heard_ns = agent->turned_ns = gs_now_ns();
    return gs_ok();
}

static void close_agent(host_agent *agent) {
    for (int i = 0; i < agent->num_slots; i++) gs_slot_stop(&agent->slots[i], true, 0);
    if (agent->reports) {
        gs_agent_reports_flush(agent->reports, gs_deadline_in_seconds(
                                                 agent->welcomed ? FLUSH_SECONDS : 0));
    }
    gs_rpc_stream_close(agent->stream);
    gs_examination_stop(agent->examination);
    gs_shared_place_stop(agent->place);
    gs_lookout_stop(agent->lookout);
    gs_agent_reports_destroy(agent->reports);
    gs_rpc_client_close(agent->client);
    gs_rpc_context_destroy(agent->context);
    gs_key_file_wipe(&agent->key.key);
    free(agent->slots);
    gs_confinement_close(&agent->confinement);
    gs_host_devices_release(&agent->devices);
    if (agent->signal_fd >= 0) close(agent->signal_fd);
}

// It stood still, and its trainers may have, too: what it has from the coordinator may be from before. The new Hello goes out
// before the old stream is closed, so that nobody takes that for an end.
static void ask_again(host_agent *agent, int64_t now_ns) {
    gs_rpc_stream *old = agent->stream;
    agent->stood_ns = now_ns;
    if (!old) return;
    gs_log_info("this worker stood still: the coordinator is asked again", "worker=%s seconds=%.1f", agent->name,
                gs_seconds_of(now_ns - agent->turned_ns));
    agent->welcomed = false;
    agent->stream = NULL;
    agent->next_hello_ns = 0;
    say_hello(agent);
    gs_rpc_stream_close(old);
}

// Its trainers may not be able to read the file.
static void pass_key_on(host_agent *agent, int64_t now_ns) {
    if (!gs_own_key_has_changed(&agent->key, now_ns)) return;
    gs_log_info("another key", "worker=%s name=%s", agent->name, agent->key.key.name);
    give_keys(agent);
}

// The time is read before anything that is looked at: who is suspended amid a turn gives its trainers no newer pulse.
static void turn(host_agent *agent, struct pollfd *fds) {
    int64_t now_ns = gs_now_ns();
    if (now_ns - agent->turned_ns >= GS_STOOD_NS) ask_again(agent, now_ns);
    agent->turned_ns = now_ns;
    say_hello(agent);
    read_stream(agent);
    send_heartbeat(agent);
    watch_silence(agent);
    pass_key_on(agent, now_ns);
    wait_for_events(agent, fds);
    look_out_for_all(agent, now_ns);
    for (int i = 0; i < agent->num_slots; i++) gs_slot_tick(&agent->slots[i]);
    if (agent->draining && count_busy(agent) == 0) stop(agent, GS_EXIT_DONE);
}

int gs_agent_run(const gs_agent_options *options) {
    host_agent agent = {.options = options, .signal_fd = -1};
    struct pollfd *fds = NULL;
    gs_status status = open_agent(&agent);
    if (!status.code) {
        fds = calloc(1 + 3 * (size_t)agent.num_slots, sizeof *fds);
        if (!fds) status = gs_error(GS_RESOURCE_EXHAUSTED, "agent: out of memory");
    }
    if (status.code) {
        gs_log_error("worker does not start", "error=\"%s\"", status.message);
        agent.exit_code = (int)gs_exit_reason_of(status).exit_code;
    }
    while (!status.code && !agent.stopped) turn(&agent, fds);
    close_agent(&agent);
    free(fds);
    return agent.exit_code;
}
