#include "coordinator/store/record/run_record.h"

#include <stdio.h>

#include "core/clock.h"

#define MAX_MEMBERS 65536
#define MAX_ORPHAN_SECONDS 1e6  // more than any setting

static gs_json *bye_to_record(const gs_farewell *bye) {
    gs_json *record = gs_json_new_object();
    gs_json_set_string(record, "reason", gs_bye_reason_name(bye->reason));
    gs_json_set_int(record, "exit_code", bye->exit_code);
    gs_json_set_string(record, "class", bye->class);
    gs_json_set_string(record, "error", bye->error);
    gs_json_set_string(record, "hint", bye->hint);
    return record;
}

static gs_json *exit_to_record(const gs_member *member) {
    gs_json *record = gs_json_new_object();
    gs_json_set_int(record, "code", member->exit_code);
    gs_json_set_int(record, "signal", member->signal);
    return record;
}

static gs_json *member_to_record(const gs_member *member) {
    gs_json *record = gs_json_new_object();
    gs_json_set_string(record, "worker", member->worker);
    gs_json_set_string(record, "host", member->host);
    gs_json_set_string(record, "boot_id", member->boot_id);
    gs_json_set_int(record, "slot", member->slot);
    gs_json_set_int(record, "rank", member->rank);
    gs_json_set_int(record, "pid", member->pid);
    gs_json_set_u64(record, "incarnation", member->incarnation);
    gs_json_set_u64(record, "launch_token", member->launch_token);
    if (member->shows_token) gs_json_set_bool(record, "shows_token", true);
    gs_json_set_string(record, "device", gs_device_word(member->is_on_gpu));
    gs_json_set_string(record, "device_uuid", member->device_uuid);
    if (member->kill_sent) gs_json_set_bool(record, "kill_sent", true);
    if (member->stage == GS_MEMBER_SETTLING || member->stage == GS_MEMBER_SETTLED) gs_json_set_bool(record, "left", true);
    if (member->bye.reason) gs_json_set(record, "bye", bye_to_record(&member->bye));
    if (member->stage == GS_MEMBER_EXITED) gs_json_set(record, "exit", exit_to_record(member));
    return record;
}

static gs_json *cause_to_record(const gs_run_cause *cause) {
    gs_json *record = gs_json_new_object();
    gs_json_set_bool(record, "is_error", cause->kind == GS_FAILURE_ERROR);
    gs_json_set_int(record, "member", cause->member);
    gs_json_set_string(record, "reason", cause->reason);
    gs_json_set_string(record, "message", cause->message);
    gs_json_set_string(record, "class", cause->class);
    gs_json_set_string(record, "hint", cause->hint);
    gs_json_set_int(record, "at_ms", cause->at_ms);
    gs_json_set_int(record, "step", cause->step);
    gs_json_set_string(record, "fault", gs_fault_kind_name(cause->fault.kind));
    gs_json_set_int(record, "reporter", cause->fault.reporter);
    return record;
}

gs_json *gs_run_to_record(const gs_run *run) {
    gs_json *record = gs_json_new_object();
    gs_json_set_string(record, "phase", gs_run_phase_name(run->phase));
    gs_json_set_int(record, "generation", run->generation);
    gs_json_set_int(record, "base_step", run->base_step);
    gs_json_set_int(record, "step", run->step);
    gs_json_set_double(record, "longest_step_seconds", run->longest_step_seconds);
    // What a record that does not say it has, as those of earlier releases: their setting may have been a shorter one.
    if (run->orphan_ns != gs_timing_default.orphan_ns)
        gs_json_set_double(record, "orphan_seconds", gs_seconds_of(run->orphan_ns));
    gs_json_set_bool(record, "draining", run->draining);
    gs_json_set_bool(record, "saving", run->saving);
    if (run->phase >= GS_RUN_SETTLING) gs_json_set_bool(record, "trained", run->has_trained);
    if (run->suspicious) gs_json_set_bool(record, "suspicious", true);
    if (run->no_restart) gs_json_set_bool(record, "no_restart", true);
    if (run->cause.set) gs_json_set(record, "cause", cause_to_record(&run->cause));
    gs_json *members = gs_json_new_array();
    for (int i = 0; i < run->num_members; i++) gs_json_push(members, member_to_record(&run->members[i]));
    gs_json_set(record, "members", members);
    return record;
}

static void read_text(char *text, size_t text_bytes, const gs_json *record, const char *key,
                      const char *fallback) {
    snprintf(text, text_bytes, "%s", gs_json_string_or(record, key, fallback));
}

static void read_bye(gs_farewell *bye, const gs_json *record, int64_t now_ns) {
    bye->reason = gs_bye_reason_of(gs_json_string_or(record, "reason", ""));
    bye->exit_code = (int)gs_json_int_or(record, "exit_code", 0);
    read_text(bye->class, sizeof bye->class, record, "class", "");
    read_text(bye->error, sizeof bye->error, record, "error", "");
    read_text(bye->hint, sizeof bye->hint, record, "hint", "");
    bye->at_ns = now_ns;
}

static bool read_member(gs_member *member, const gs_json *record) {
    read_text(member->worker, sizeof member->worker, record, "worker", "");
    read_text(member->host, sizeof member->host, record, "host", "");
    read_text(member->boot_id, sizeof member->boot_id, record, "boot_id", "");
    member->is_on_gpu = !strcmp(gs_json_string_or(record, "device", ""), gs_device_word(true));
    read_text(member->device_uuid, sizeof member->device_uuid, record, "device_uuid", "");
    member->slot = (int)gs_json_int_or(record, "slot", 0);
    member->rank = (int)gs_json_int_or(record, "rank", -1);
    member->pid = gs_json_int_or(record, "pid", 0);
    member->shows_token = gs_json_bool_or(record, "shows_token", false);
    gs_status token = gs_json_read_u64(&member->launch_token, record, "launch_token");
    gs_status incarnation = gs_json_read_u64(&member->incarnation, record, "incarnation");
    return !token.code && !incarnation.code && member->incarnation && member->rank >= 0 && member->slot >= 0;
}

// How far it was. Who had left its generation may not have heard what it is to do, and asks again.
static void read_stage(gs_member *member, const gs_json *record, int64_t now_ns) {
    const gs_json *bye = gs_json_get(record, "bye"), *end = gs_json_get(record, "exit");
    member->stage = gs_json_bool_or(record, "left", false) ? GS_MEMBER_SETTLING : GS_MEMBER_UP;
    member->kill_sent = gs_json_bool_or(record, "kill_sent", false);
    if (bye) {
        member->stage = GS_MEMBER_LEAVING;
        read_bye(&member->bye, bye, now_ns);
    }
    if (!end) return;
    member->stage = GS_MEMBER_EXITED;
    member->exit_code = (int)gs_json_int_or(end, "code", -1);
    member->signal = (int)gs_json_int_or(end, "signal", 0);
    member->exited_ns = now_ns;
}

static void read_cause(gs_run *run, const gs_json *record) {
    gs_run_cause *cause = &run->cause;
    int64_t member = gs_json_int_or(record, "member", -1);
    cause->set = true;
    cause->kind = gs_json_bool_or(record, "is_error", false) ? GS_FAILURE_ERROR : GS_FAILURE_LOST;
    cause->member = member >= 0 && member < run->num_members ? (int)member : -1;
    read_text(cause->reason, sizeof cause->reason, record, "reason", "WorkerLost");
    read_text(cause->message, sizeof cause->message, record, "message", "");
    read_text(cause->class, sizeof cause->class, record, "class", "");
    read_text(cause->hint, sizeof cause->hint, record, "hint", "");
    cause->at_ms = gs_json_int_or(record, "at_ms", 0);
    cause->step = gs_json_int_or(record, "step", run->step);
    cause->fault = gs_fault_facts_of(gs_fault_kind_of(gs_json_string_or(record, "fault", "")), cause->member);
    cause->fault.reporter = (int)gs_json_int_or(record, "reporter", -1);
    gs_fault_facts_bound(&cause->fault, run->num_members);
}

// Who is told to go trains, and may do so for as long as nobody is heard, also when its generation is over for others.
static bool has_trained(const gs_json *record, gs_run_phase phase) {
    if (phase == GS_RUN_TRAINING || phase == GS_RUN_RELOADING) return true;
    // Of an earlier release: its ranks have trained when they have made a step.
    bool has_stepped = gs_json_int_or(record, "step", 0) > gs_json_int_or(record, "base_step", 0);
    return phase >= GS_RUN_SETTLING && gs_json_bool_or(record, "trained", has_stepped);
}

static int64_t read_orphan_limit(const gs_json *record) {
    double seconds = gs_json_double_or(record, "orphan_seconds", 0);
    bool is_told = seconds > 0 && seconds <= MAX_ORPHAN_SECONDS;
    return is_told ? (int64_t)(seconds * (double)GS_NS_PER_SEC) : gs_timing_default.orphan_ns;
}

gs_run *gs_run_from_record(gs_job *job, const gs_json *record, int64_t now_ns) {
    gs_run_phase phase;
    bool is_kept = gs_run_phase_from_name(&phase, gs_json_string_or(record, "phase", "")) && has_trained(record, phase);
    const gs_json *members = gs_json_get(record, "members");
    size_t count = gs_json_count(members);
    if (!is_kept || count == 0 || count > MAX_MEMBERS) return NULL;
    gs_run *run = gs_run_create(job, (int)count, now_ns);
    run->phase = phase >= GS_RUN_SETTLING ? GS_RUN_SETTLING : GS_RUN_RELOADING;
    run->was_settling = phase >= GS_RUN_SETTLING;
    run->has_trained = true;
    run->generation = (uint32_t)gs_json_int_or(record, "generation", 0);
    run->base_step = gs_json_int_or(record, "base_step", 0);
    run->step = gs_json_int_or(record, "step", job->step);
    run->longest_step_seconds = gs_json_double_or(record, "longest_step_seconds", 0);
    run->orphan_ns = run->told_orphan_ns = read_orphan_limit(record);
    run->draining = gs_json_bool_or(record, "draining", false);
    run->saving = gs_json_bool_or(record, "saving", false);
    run->suspicious = gs_json_bool_or(record, "suspicious", false);
    run->no_restart = gs_json_bool_or(record, "no_restart", false);
    run->first_step_seen = job->committed && run->step > run->base_step;  // a step that was heard too late is none
    run->step_before = run->base_step;  // what it has come to is not known: for its good
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        const gs_json *item = gs_json_at(members, (size_t)i);
        if (read_member(member, item) && member->rank == i) {
            read_stage(member, item, now_ns);
            member->was_up = true;
            member->applied_step = run->step;
            continue;
        }
        gs_run_destroy(run);
        return NULL;
    }
    if (gs_json_get(record, "cause")) read_cause(run, gs_json_get(record, "cause"));
    return run;
}
