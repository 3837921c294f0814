#include "coordinator/run.h"

#include <stdlib.h>
#include <string.h>

#include "core/clock.h"

static const char *const phase_names[] = {"launching", "preparing", "connecting", "training",
                                          "reloading", "settling",  "ending"};

const char *gs_run_phase_name(gs_run_phase phase) { return phase_names[phase]; }

gs_run *gs_run_create(gs_job *job, int num_members) {
    gs_run *run = calloc(1, sizeof *run);
    if (!run) return NULL;
    run->members = calloc((size_t)num_members, sizeof *run->members);
    if (!run->members) {
        free(run);
        return NULL;
    }
    run->job = job;
    run->num_members = num_members;
    run->cause.member = -1;
    run->plan_step = -1;
    run->step_before = job->step;
    run->begun_ns = run->phase_since_ns = run->progress_ns = gs_now_ns();
    for (int i = 0; i < num_members; i++) {
        run->members[i].job = job;
        run->members[i].rank = -1;
    }
    return run;
}

static void release_member(gs_member *member) {
    gs_status over = gs_error(GS_ABORTED, "the generation is over");
    if (member->settle) gs_rpc_reply(member->settle, over, NULL);
    if (member->stream) gs_rpc_end(member->stream, over);
    gs_json_release(member->log_tail);
    free(member->params);
    gs_param_list_release(&member->listed);
}

void gs_run_part(gs_run *run) {
    if (!run) return;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (member->stream) gs_rpc_end(member->stream, gs_error(GS_UNAVAILABLE, "the coordinator stops"));
        member->stream = member->settle = NULL;
    }
    gs_exchange_part(run->exchanges);
}

void gs_run_destroy(gs_run *run) {
    if (!run) return;
    gs_exchange_drop(&run->exchanges, gs_error(GS_ABORTED, "the generation is over"));
    for (int i = 0; i < run->num_members; i++) {
        if (run->index) gs_u64_map_remove(run->index, run->members[i].incarnation);
        release_member(&run->members[i]);
    }
    gs_bucket_plan_release(&run->plan);
    gs_json_release(run->plan_message);
    gs_json_release(run->next.message);
    gs_json_release(run->next.view);
    free(run->members);
    free(run);
}

gs_member *gs_run_member_of_rank(gs_run *run, int rank) {
    if (!run || rank < 0 || rank >= run->num_members) return NULL;
    return run->members[rank].rank == rank ? &run->members[rank] : NULL;
}

int gs_member_rank_hint(const gs_member *member) {
    return (int)(member - member->job->run->members);
}

void gs_run_index_members(gs_run *run, gs_u64_map *index) {
    run->index = index;
    for (int i = 0; i < run->num_members; i++) {
        // Without memory for it the member is not found, says hello in vain, and ends: a late rank.
        if (!gs_u64_map_set(index, run->members[i].incarnation, &run->members[i])) return;
    }
}

bool gs_run_is_broken(const gs_run *run) {
    if (!run->has_trained) return true;
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        if (member->exited || member->settle || member->settled || member->said_bye) return true;
    }
    return false;
}

int64_t gs_run_heard_ns(const gs_run *run) {
    int64_t heard_ns = run->progress_ns;
    for (int i = 0; i < run->num_members; i++)
        if (run->members[i].heard_ns > heard_ns) heard_ns = run->members[i].heard_ns;
    return heard_ns;
}

void gs_run_enter(gs_run *run, gs_run_phase phase, int64_t deadline_ns) {
    run->phase = phase;
    run->has_trained |= phase == GS_RUN_TRAINING || phase == GS_RUN_RELOADING;
    run->phase_since_ns = gs_now_ns();
    run->phase_deadline_ns = deadline_ns ? run->phase_since_ns + deadline_ns : 0;
}

bool gs_member_send(gs_member *member, gs_json *item) {
    if (!member->stream) {
        gs_json_release(item);
        return false;
    }
    return gs_rpc_item(member->stream, item);
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
    gs_json_set_string(record, "device", member->device);
    gs_json_set_string(record, "device_uuid", member->device_uuid);
    return record;
}

gs_json *gs_run_to_record(const gs_run *run) {
    gs_json *record = gs_json_new_object();
    gs_json_set_string(record, "phase", gs_run_phase_name(run->phase));
    gs_json_set_int(record, "generation", run->generation);
    gs_json_set_int(record, "base_step", run->base_step);
    gs_json_set_bool(record, "draining", run->draining);
    gs_json *members = gs_json_new_array();
    for (int i = 0; i < run->num_members; i++) {
        gs_json_push(members, member_to_record(&run->members[i]));
    }
    gs_json_set(record, "members", members);
    return record;
}

static bool read_member(gs_member *member, const gs_json *record) {
    strncpy(member->worker, gs_json_string_or(record, "worker", ""), sizeof member->worker - 1);
    strncpy(member->host, gs_json_string_or(record, "host", ""), sizeof member->host - 1);
    strncpy(member->boot_id, gs_json_string_or(record, "boot_id", ""), sizeof member->boot_id - 1);
    strncpy(member->device, gs_json_string_or(record, "device", "cpu"), sizeof member->device - 1);
    strncpy(member->device_uuid, gs_json_string_or(record, "device_uuid", ""),
            sizeof member->device_uuid - 1);
    member->slot = (int)gs_json_int_or(record, "slot", 0);
    member->rank = (int)gs_json_int_or(record, "rank", -1);
    member->pid = gs_json_int_or(record, "pid", 0);
    gs_status token = gs_json_read_u64(&member->launch_token, record, "launch_token");
    gs_status incarnation = gs_json_read_u64(&member->incarnation, record, "incarnation");
    return !token.code && !incarnation.code && member->incarnation && member->rank >= 0;
}

gs_run *gs_run_from_record(gs_job *job, const gs_json *record) {
    const char *phase = gs_json_string_or(record, "phase", "");
    if (strcmp(phase, phase_names[GS_RUN_TRAINING]) && strcmp(phase, phase_names[GS_RUN_RELOADING])) {
        return NULL;
    }
    const gs_json *members = gs_json_get(record, "members");
    int count = (int)gs_json_count(members);
    if (count <= 0) return NULL;
    gs_run *run = gs_run_create(job, count);
    if (!run) return NULL;
    run->generation = (uint32_t)gs_json_int_or(record, "generation", 0);
    run->base_step = gs_json_int_or(record, "base_step", 0);
    run->draining = gs_json_bool_or(record, "draining", false);
    run->step = job->step;
    run->first_step_seen = job->step > run->base_step;
    run->step_before = run->base_step;  // what it has come to is not known: for its good
    for (int i = 0; i < count; i++) {
        gs_member *member = &run->members[i];
        if (read_member(member, gs_json_at(members, (size_t)i)) && member->rank == i) {
            member->said_hello = member->ready = member->comm_up = true;
            member->applied_step = job->step;
            continue;
        }
        gs_run_destroy(run);
        return NULL;
    }
    return run;
}
