#include "worker/agent/coordinator_line.h"

#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "rpc/schema/messages.h"
#include "worker/agent/rank_key.h"
#include "worker/agent/rank_orders.h"
#include "worker/exit_code.h"

#define MAX_CADENCE_SECONDS 60
#define LAST_RETRY_NS (2 * GS_NS_PER_SEC)
// A coordinator that refuses a worker whose trainers run is asked this often.
#define REFUSED_RETRY_NS (2 * GS_NS_PER_SEC)
// A name that is taken may be our own old connection: it is given this long to be noticed.
#define NAME_TAKEN_NS (10 * GS_NS_PER_SEC)

static gs_json *encode_hello(const gs_host_agent *agent) {
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

// A worker without trainers has nothing to stay for. With trainers it outlives the refusal: they end with
// it, and whoever refuses may be the wrong coordinator, or of another version.
static void take_refusal(gs_host_agent *agent, gs_status status) {
    int busy = gs_host_agent_count_busy(agent);
    if (busy == 0) {
        gs_log_error("coordinator refused this worker", "worker=%s reason=\"%s\"", agent->name,
                     status.message);
        gs_host_agent_stop(agent, GS_EXIT_CONFIGURATION);
        return;
    }
    agent->next_hello_ns = gs_now_ns() + REFUSED_RETRY_NS;
    if (agent->told_refusal) return;
    agent->told_refusal = true;
    gs_log_error("coordinator refused this worker; its trainers go on",
                 "worker=%s trainers=%d reason=\"%s\"", agent->name, busy, status.message);
}

static void lose_stream(gs_host_agent *agent, gs_status status) {
    int64_t now_ns = gs_now_ns();
    gs_rpc_stream_close(agent->stream);
    agent->stream = NULL;
    if (agent->welcomed) {
        gs_log_warn("coordinator lost", "worker=%s reason=\"%s\"", agent->name, status.message);
        agent->retry_ns = GS_FIRST_RETRY_NS;
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

void gs_coordinator_line_say_hello(gs_host_agent *agent) {
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
static void take_cadence(gs_host_agent *agent, const gs_json *item) {
    double seconds = gs_json_double_or(item, "heartbeat_seconds", 0.1);
    if (seconds >= 0.01 && seconds <= MAX_CADENCE_SECONDS)
        agent->heartbeat_ns = (int64_t)(seconds * (double)GS_NS_PER_SEC);
}

// A coordinator of before lets trainers in by their worker's key alone.
void gs_coordinator_line_give_keys(gs_host_agent *agent) {
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

static void take_welcome(gs_host_agent *agent, const gs_json *item) {
    take_cadence(agent, item);
    agent->gives_rank_keys = gs_json_bool_or(item, "rank_keys", false);
    gs_coordinator_line_give_keys(agent);
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

static void take_item(gs_host_agent *agent, const gs_json *item) {
    const char *type = gs_json_string_or(item, "type", "");
    if (strcmp(type, "welcome") == 0) take_welcome(agent, item);
    else if (strcmp(type, "cadence") == 0) take_cadence(agent, item);
    else if (gs_rank_orders_take(agent, type, item)) return;
    else if (strcmp(type, "examine") == 0 || strcmp(type, "reach") == 0 || strcmp(type, "sum") == 0 || strcmp(type, "exchanged") == 0 ||
             strcmp(type, "examined") == 0)
        gs_examination_take(agent->examination, item);
}

void gs_coordinator_line_read(gs_host_agent *agent) {
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

void gs_coordinator_line_beat(gs_host_agent *agent) {
    int64_t now_ns = gs_now_ns();
    if (!agent->welcomed || now_ns < agent->next_heartbeat_ns) return;
    agent->next_heartbeat_ns = now_ns + agent->heartbeat_ns;
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "slots_busy", gs_host_agent_count_busy(agent));
    if (agent->draining) gs_json_set_bool(out, "leaving", true);
    gs_place_sight sight = gs_shared_place_sight(agent->place);
    if (strcmp(sight.state, "same") == 0) gs_json_set_string(out, "place", "same");
    else if (gs_place_sight_is_apart(&sight)) gs_json_set_string(out, "place", "apart");
    gs_rpc_send(agent->client, GS_AGENT_HEARTBEAT, out);
    gs_json_release(out);
}

void gs_coordinator_line_watch(gs_host_agent *agent) {
    int64_t now_ns = gs_now_ns();
    if (agent->welcomed) agent->heard_ns = now_ns;
    int64_t silent_ns = now_ns - agent->heard_ns;
    if (silent_ns > 5 * GS_NS_PER_SEC && !agent->told_silence) {
        agent->told_silence = true;
        gs_log_warn("no coordinator yet", "worker=%s coordinator=%s", agent->name,
                    agent->options->coordinator);
    }
    double limit = agent->options->coordinator_timeout_seconds;
    if (limit <= 0 || (double)silent_ns < limit * (double)GS_NS_PER_SEC || gs_host_agent_count_busy(agent)) return;
    gs_log_error("no coordinator for too long", "worker=%s coordinator=%s seconds=%.0f",
                 agent->name, agent->options->coordinator, limit);
    gs_host_agent_stop(agent, GS_EXIT_UNREACHABLE);
}

// It stood still, and its trainers may have, too: what it has from the coordinator may be from before. The new Hello goes out
// before the old stream is closed, so that nobody takes that for an end.
void gs_coordinator_line_ask_again(gs_host_agent *agent, int64_t now_ns) {
    gs_rpc_stream *old = agent->stream;
    agent->stood_ns = now_ns;
    if (!old) return;
    gs_log_info("this worker stood still: the coordinator is asked again", "worker=%s seconds=%.1f", agent->name,
                gs_seconds_of(now_ns - agent->turned_ns));
    agent->welcomed = false;
    agent->stream = NULL;
    agent->next_hello_ns = 0;
    gs_coordinator_line_say_hello(agent);
    gs_rpc_stream_close(old);
}
