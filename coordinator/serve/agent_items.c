#include "coordinator/serve/agent_items.h"

#include <stdio.h>

#include "coordinator/observe/hosts/told_life.h"
#include "core/clock.h"

static gs_json *welcome(const gs_state *state, const gs_key_gate *gate, const gs_agent_message *message) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "welcome");
    gs_json_set_string(item, "cluster", state->cluster.id);
    gs_json_set_int(item, "coordinator_epoch", state->cluster.epoch);
    gs_json_set_u64(item, "coordinator_life", state->cluster.life);
    gs_item_prove_life(item, "life_proof", gate, &state->cluster, 0);
    gs_json_set_double(item, "heartbeat_seconds", (double)message->heartbeat_ns / GS_NS_PER_SEC);
    gs_json_set_string(item, "checkpoints_dir", state->checkpoints_dir);
    return item;
}

static gs_json *cadence(const gs_agent_message *message) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "cadence");
    gs_json_set_double(item, "heartbeat_seconds", gs_seconds_of(message->heartbeat_ns));
    return item;
}

static gs_json *describe_resume(const char *job_directory, const gs_checkpoint *checkpoint) {
    char path[1400];
    snprintf(path, sizeof path, "%s/%s", job_directory, checkpoint->directory);
    gs_json *resume = gs_json_new_object();
    gs_json_set_int(resume, "step", checkpoint->step);
    gs_json_set_string(resume, "directory", path);
    return resume;
}

// By which its agent can show later that numbers up to there were given out.
static gs_json *numbers(const gs_state *state, const gs_key_gate *gate) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "coordinator_epoch", state->cluster.epoch);
    gs_json_set_u64(out, "coordinator_life", state->cluster.life);
    gs_json_set_int(out, "end", state->generations.durable_end);
    gs_item_prove_life(out, "proof", gate, &state->cluster, state->generations.durable_end);
    return out;
}

static gs_json *start_rank(const gs_state *state, const gs_key_gate *gate, const gs_effect *effect, gs_json *spec) {
    const gs_job *job = effect->job;
    const gs_member *member = effect->member;
    const gs_checkpoint *resume = effect->agent_message.resume;
    char directory[1100];
    snprintf(directory, sizeof directory, "%s/%s", state->checkpoints_dir, job->id_text);
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "start_rank");
    gs_json_set_string(item, "cluster", state->cluster.id);
    gs_json_set_int(item, "slot", member->slot);
    gs_json_set_string(item, "job", job->id_text);
    gs_json_set_string(item, "job_name", job->spec.name);
    gs_json_set_int(item, "rank_hint", (int)(member - effect->run->members));
    gs_json_set_u64(item, "incarnation", member->incarnation);
    gs_json_set_u64(item, "launch_token", member->launch_token);
    // As long as agents take it to be where it is not told.
    if (state->timing.orphan_ns != gs_timing_default.orphan_ns)
        gs_json_set_double(item, "orphan_seconds", gs_seconds_of(state->timing.orphan_ns));
    gs_json_set_int(item, "last_generation", state->generations.next - 1);
    if (gate) gs_json_set(item, "numbers", numbers(state, gate));
    gs_json_set_string(item, "device", gs_device_word(member->is_on_gpu));
    gs_json_set(item, "spec", gs_json_retain(spec));
    gs_json_set_string(item, "checkpoints_dir", directory);
    if (resume) gs_json_set(item, "resume", describe_resume(directory, resume));
    return item;
}

static gs_json *stop_rank(const gs_agent_message *message) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "stop_rank");
    gs_json_set_int(item, "slot", message->slot);
    gs_json_set_u64(item, "incarnation", message->incarnation);
    gs_json_set_string(item, "signal", message->kill ? "kill" : "term");
    gs_json_set_double(item, "grace_seconds", message->grace_seconds);
    return item;
}

static gs_json *about_rank(const gs_state *state, const char *type, const gs_agent_message *message) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", type);
    gs_json_set_int(item, "slot", message->slot);
    gs_json_set_u64(item, "incarnation", message->incarnation);
    gs_json_set_string(item, "cluster", state->cluster.id);
    return item;
}

gs_json *gs_agent_item(const gs_state *state, const gs_key_gate *gate, const gs_effect *effect, gs_json *spec) {
    switch (effect->agent_message.order) {
    case GS_TELL_AGENT_WELCOME: return welcome(state, gate, &effect->agent_message);
    case GS_TELL_START_RANK: return start_rank(state, gate, effect, spec);
    case GS_TELL_STOP_RANK: return stop_rank(&effect->agent_message);
    case GS_TELL_DESCRIBE_RANK: return about_rank(state, "describe_rank", &effect->agent_message);
    case GS_TELL_AGENT_CADENCE: return cadence(&effect->agent_message);
    case GS_TELL_ADOPT_RANK: return about_rank(state, "adopt_rank", &effect->agent_message);
    }
    return NULL;
}
