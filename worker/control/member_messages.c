#include "worker/control/member_messages.h"

#include <stdio.h>
#include <unistd.h>

#include "rpc/schema/messages.h"

static void set_digest(gs_json *out, const char *key, gs_digest digest) {
    char text[GS_DIGEST_TEXT_LEN];
    gs_digest_format(text, digest);
    gs_json_set_string(out, key, text);
}

gs_json *gs_member_message_hello(const gs_launch *launch, const gs_trainer_facts *facts) {
    gs_json *out = gs_json_new_object();
    gs_json_set_string(out, "job", launch->job);
    gs_json_set_string(out, "cluster", launch->cluster);
    gs_json_set_string(out, "launch_token", launch->launch_token);
    gs_json_set_string(out, "worker", launch->worker);
    gs_json_set_int(out, "slot", launch->slot);
    gs_json_set_u64(out, "incarnation", launch->incarnation);
    gs_json_set_int(out, "pid", getpid());
    gs_json_set_string(out, "host", launch->host);
    gs_json_set_string(out, "boot_id", launch->boot_id);
    gs_json_set_string(out, "build", GRADSYNC_VERSION);
    gs_json_set_int(out, "proto_least", GS_PROTOCOL_LEAST);
    gs_json_set_int(out, "proto_most", GS_PROTOCOL_MOST);
    gs_json_set_bool(out, "takes_cadence", true);
    set_digest(out, "params_digest", gs_param_specs_digest(facts->params, facts->num_params));
    gs_json_set_int(out, "num_params", (int64_t)facts->num_params);
    gs_json_set_int(out, "total_elements", (int64_t)facts->total_elements);
    gs_json_set_string(out, "arithmetic", facts->arithmetic);
    set_digest(out, "data_digest", facts->data_digest);
    return out;
}

gs_json *gs_member_message_ready(uint32_t generation, const char *plan_hash, int64_t applied_step,
                                 const gs_digest *state_digest) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "generation", generation);
    gs_json_set_string(out, "plan_hash", plan_hash);
    gs_json_set_int(out, "applied_step", applied_step);
    if (state_digest) set_digest(out, "state_digest", *state_digest);
    else gs_json_set_string(out, "state_digest", "");
    return out;
}

static int64_t resident_bytes(void) {
    long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file) {
        if (fscanf(file, "%*s %lld", &pages) != 1) pages = 0;
        fclose(file);
    }
    return (int64_t)pages * sysconf(_SC_PAGESIZE);
}

static void set_plans(gs_json *out, const gs_control *control) {
    gs_json_set_u64(out, "plan", atomic_load(&control->progress.plan_digest));
    gs_json_set_u64(out, "next_plan", atomic_load(&control->progress.next_plan_digest));
    gs_json_set_int(out, "plan_step", atomic_load(&control->progress.plan_step));
}

gs_json *gs_member_message_heartbeat(gs_member_state state, uint32_t generation,
                                     const gs_control *control) {
    gs_trainer_phase phase = (gs_trainer_phase)atomic_load(&control->progress.phase);
    gs_json *out = gs_json_new_object();
    gs_json_set_string(out, "state", gs_member_state_name(state));
    gs_json_set_int(out, "generation", generation);
    gs_json_set_int(out, "applied_step", atomic_load(&control->progress.applied_step));
    gs_json_set_string(out, "phase", gs_trainer_phase_name(phase));
    gs_json_set_int(out, "rss_bytes", resident_bytes());
    set_plans(out, control);
    return out;
}

gs_json *gs_member_message_comm_up(const gs_comm_facts *facts) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "generation", facts->generation);
    gs_json_set_double(out, "seconds", facts->seconds);
    gs_json_set_string(out, "backend", facts->backend);
    gs_json_set_string(out, "reason", facts->reason);
    gs_json_set_string(out, "algorithm", facts->algorithm);
    return out;
}

gs_json *gs_member_message_checkpointed(const gs_checkpoint_result *result) {
    const gs_checkpoint_request *request = &result->request;
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "step", result->step);
    gs_json_set_string(out, "directory", result->name);
    if (request->num_parts > 1) {
        gs_json_set_int(out, "part", request->part);
        gs_json_set_int(out, "num_parts", request->num_parts);
    }
    if (result->status.code) {
        gs_json_set_string(out, "error", result->status.message);
        gs_json_set_string(out, "cause", result->cause);
        gs_json_set_string(out, "reason", request->reason);
        return out;
    }
    gs_json *files = gs_json_new_array(), *part = gs_json_new_object();
    gs_json_set_string(part, "name", result->part_name);
    gs_json_set_int(part, "bytes", (int64_t)result->part_bytes);
    set_digest(part, "digest", result->part_digest);
    gs_json_push(files, part);
    gs_json_set_int(out, "bytes", (int64_t)result->bytes);
    gs_json_set_double(out, "seconds", result->seconds);
    gs_json_set(out, "files", files);
    if (request->num_parts == 1) set_digest(out, "manifest_digest", result->manifest_digest);
    set_digest(out, "state_digest", result->state_digest);
    gs_json_set_int(out, "world_size", request->world_size);
    gs_json_set_int(out, "samples", result->samples);
    gs_json_set_string(out, "reason", request->reason);
    return out;
}

gs_json *gs_member_message_order(const gs_order_report *report) {
    gs_json *out = gs_json_new_object(), *order = gs_json_new_array();
    for (size_t i = 0; i < report->num_params; i++)
        gs_json_push(order, gs_json_new_int((int64_t)report->order[i]));
    gs_json_set_int(out, "generation", report->generation);
    gs_json_set_int(out, "step", report->step);
    gs_json_set_bool(out, "settled", report->settled);
    gs_json_set(out, "order", order);
    if (report->link) gs_json_set(out, "link", gs_link_message_encode(report->link));
    if (report->offers) gs_json_set(out, "offers", gs_offers_message_encode(report->offers));
    return out;
}

gs_json *gs_member_message_fault(const gs_fault *fault) {
    gs_json *out = gs_json_new_object(), *accused = gs_json_new_array();
    for (int i = 0; i < GS_COMM_MAX_RANKS; i++) {
        if (gs_comm_failure_names(&fault->comm, i)) gs_json_push(accused, gs_json_new_int(i));
    }
    gs_json_set_int(out, "generation", fault->generation);
    gs_json_set_int(out, "rank", fault->rank);
    gs_json_set_int(out, "step", fault->step);
    gs_json_set_string(out, "kind", gs_fault_kind_name(fault->kind));
    gs_json_set(out, "accused", accused);
    gs_json_set(out, "suspects", gs_json_copy(accused));  // what a coordinator of before looks for
    if (fault->comm.reporter >= 0) gs_json_set_int(out, "reporter", fault->comm.reporter);
    if (fault->comm.sequence) {
        gs_json_set_int(out, "collective", (int64_t)fault->comm.sequence);
        gs_json_set_int(out, "lane", fault->comm.lane);
        gs_json_set_int(out, "collective_step", fault->comm.step);
        gs_json_set_int(out, "bucket", fault->comm.bucket);
    }
    gs_json_set_string(out, "code", gs_code_name(fault->status.code));
    gs_json_set_string(out, "text", fault->status.message);
    return out;
}

gs_json *gs_member_message_settle(const gs_settlement *settlement) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "generation", settlement->generation);
    gs_json_set_int(out, "rank", settlement->rank);
    gs_json_set_int(out, "applied_step", settlement->applied_step);
    gs_json_set_bool(out, "complete", settlement->complete);
    gs_json_set_bool(out, "apart", settlement->apart);
    return out;
}

gs_json *gs_member_message_bye(const gs_trainer_outcome *outcome, uint32_t generation, int rank,
                               const gs_control *control) {
    gs_json *out = gs_json_new_object();
    gs_json_set_int(out, "generation", generation);
    gs_json_set_int(out, "rank", rank);
    gs_json_set_int(out, "applied_step", atomic_load(&control->progress.applied_step));
    set_plans(out, control);  // a change since the last heartbeat
    gs_json_set_string(out, "reason", gs_trainer_end_name(outcome->end));
    gs_json_set_int(out, "exit_code", outcome->reason.exit_code);
    if (outcome->status.code) {
        gs_json_set_string(out, "class", outcome->reason.error_class);
        gs_json_set_string(out, "error", outcome->status.message);
        gs_json_set_string(out, "hint", outcome->reason.hint);
    }
    gs_json_set_string(out, "sample", outcome->sample);
    set_digest(out, "state_digest", outcome->state_digest);
    return out;
}

void gs_member_complete_page(gs_json *page, int64_t request, uint32_t generation) {
    gs_json_set_int(page, "request", request);
    gs_json_set_int(page, "generation", generation);
}
