#include "coordinator/serve/member_items.h"

#include "coordinator/observe/hosts/told_life.h"
#include "core/clock.h"
#include "rpc/plan/plan_message.h"
#include "rpc/schema/step_record.h"

gs_json *gs_member_plan(const gs_member_message *message) {
    return gs_plan_message_encode(
        message->plan,
        &(gs_plan_label){message->facts->revision, message->facts->reason, message->is_observed});
}

static gs_json *new_item(const char *type) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", type);
    return item;
}

static gs_json *bound_item(const char *type, const gs_run *run) {
    gs_json *item = new_item(type);
    gs_json_set_int(item, "generation", run->generation);
    return item;
}

static void set_cadence(gs_json *item, gs_cadence cadence) {
    gs_json_set_double(item, "heartbeat_seconds", gs_seconds_of(cadence.heartbeat_ns));
    gs_json_set_double(item, "report_seconds", gs_seconds_of(cadence.report_ns));
}

static gs_json *cadence(const gs_member_message *message) {
    gs_json *item = new_item("cadence");
    set_cadence(item, message->cadence);
    return item;
}

static gs_json *welcome(const gs_state *state, const gs_key_gate *gate, const gs_member_message *message) {
    gs_json *item = new_item("welcome");
    gs_json_set_string(item, "cluster", state->cluster.id);
    gs_json_set_int(item, "coordinator_epoch", state->cluster.epoch);
    gs_json_set_u64(item, "coordinator_life", state->cluster.life);
    gs_item_prove_life(item, "life_proof", gate, &state->cluster, 0);
    set_cadence(item, message->cadence);
    gs_json_set_int(item, "step_record", GS_STEP_RECORD_VERSION);
    gs_json_set_double(item, "orphan_seconds", (double)message->orphan_ns / GS_NS_PER_SEC);
    gs_json_set_bool(item, "send_params", message->send_params);
    return item;
}

static gs_json *prepare(const gs_state *state, const gs_effect *effect, gs_json *plan) {
    const gs_run *run = effect->run;
    gs_json *item = bound_item("prepare", run);
    gs_json_set_int(item, "rank", effect->member->rank);
    gs_json_set_int(item, "world_size", run->num_members);
    gs_json_set_int(item, "num_shards", run->job->spec.logical_shards);
    gs_json_set(item, "plan", gs_json_retain(plan));
    gs_json_set_double(item, "timeout_seconds", (double)state->timing.connect_ns / GS_NS_PER_SEC);
    return item;
}

static gs_json *start(const gs_run *run) {
    gs_json *item = bound_item("start", run);
    gs_json_set_int(item, "base_step", run->base_step);
    return item;
}

static gs_json *abort_of(const gs_run *run) {
    gs_json *item = bound_item("abort", run), *suspects = gs_json_new_array();
    gs_json_set_string(item, "reason", run->cause.message);
    if (run->cause.member >= 0) gs_json_push(suspects, gs_json_new_int(run->cause.member));
    gs_json_set(item, "suspects", suspects);
    return item;
}

static gs_json *drain(const gs_run *run) {
    gs_json *item = new_item("drain");
    gs_json_set_string(item, "reason", run->job->stop_reason);
    gs_json_set_bool(item, "save", run->saving);
    return item;
}

static gs_json *replan(const gs_run *run, gs_json *plan) {
    gs_json *item = bound_item("replan", run);
    gs_json_set(item, "plan", gs_json_retain(plan));
    return item;
}

gs_json *gs_member_item(const gs_state *state, const gs_key_gate *gate, const gs_effect *effect, gs_json *plan) {
    const gs_run *run = effect->run;
    switch (effect->member_message.order) {
    case GS_TELL_WELCOME: return welcome(state, gate, &effect->member_message);
    case GS_TELL_PREPARE: return prepare(state, effect, plan);
    case GS_TELL_START: return start(run);
    case GS_TELL_GO: return bound_item("go", run);
    case GS_TELL_ABORT: return abort_of(run);
    case GS_TELL_DRAIN: return drain(run);
    case GS_TELL_REPLAN: return replan(run, plan);
    case GS_TELL_CADENCE: return cadence(&effect->member_message);
    }
    return NULL;
}
