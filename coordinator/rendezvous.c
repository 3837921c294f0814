#include "coordinator/rendezvous.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/agents.h"
#include "coordinator/checkpoints.h"
#include "coordinator/cluster.h"
#include "coordinator/events.h"
#include "coordinator/job_control.h"
#include "coordinator/job_metrics.h"
#include "coordinator/membership.h"
#include "coordinator/metric_families.h"
#include "coordinator/planner.h"
#include "coordinator/replan.h"
#include "coordinator/timelines.h"
#include "core/clock.h"
#include "core/digest.h"
#include "core/log.h"
#include "core/random.h"
#include "rpc/schema/messages.h"

static void copy_text(char *text, size_t text_bytes, const gs_json *object, const char *key) {
    snprintf(text, text_bytes, "%s", gs_json_string_or(object, key, ""));
}

// Any JSON value as text to compare.
static void copy_value(char *text, size_t text_bytes, const gs_json *value) {
    char *encoded = NULL;
    gs_status status = value ? gs_json_encode(&encoded, NULL, value, false) : gs_ok();
    snprintf(text, text_bytes, "%s", !status.code && encoded ? encoded : "");
    free(encoded);
}

static void send_welcome(gs_coordinator *coordinator, gs_member *member, bool send_params) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "welcome");
    gs_cluster_welcome(coordinator, item);
    member->heartbeat_ns = gs_coordinator_heartbeat_ns(coordinator);
    gs_json_set_double(item, "heartbeat_seconds", (double)member->heartbeat_ns / GS_NS_PER_SEC);
    gs_json_set_double(item, "orphan_seconds", (double)coordinator->timing.orphan_ns / GS_NS_PER_SEC);
    gs_json_set_bool(item, "send_params", send_params);
    gs_member_send(member, item);
    member->list_asked |= send_params;
}

static void send_prepare(gs_coordinator *coordinator, gs_run *run, gs_member *member) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "prepare");
    gs_json_set_int(item, "generation", run->generation);
    gs_json_set_int(item, "rank", member->rank);
    gs_json_set_int(item, "world_size", run->num_members);
    gs_json_set_int(item, "num_shards", run->job->spec.logical_shards);
    gs_json_set(item, "plan", gs_json_retain(run->plan_message));
    gs_json_set_double(item, "timeout_seconds",
                       (double)coordinator->timing.connect_ns / GS_NS_PER_SEC);
    gs_member_send(member, item);
}

static void send_start(gs_run *run, gs_member *member) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "start");
    gs_json_set_int(item, "generation", run->generation);
    gs_json_set_int(item, "base_step", run->base_step);
    gs_member_send(member, item);
}

static void send_go(gs_run *run, gs_member *member) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "go");
    gs_json_set_int(item, "generation", run->generation);
    gs_member_send(member, item);
}

// The first member whose list has come: what the others are compared with.
static gs_member *find_reference(gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].params) return &run->members[i];
    }
    return NULL;
}

static void refuse_world(gs_coordinator *coordinator, gs_run *run, gs_member *member,
                         const char *reason, const char *what, const char *hint) {
    gs_blame blame = {.kind = GS_FAILURE_ERROR, .member = member, .reason = reason, .class = "user",
                      .hint = hint, .fault = GS_FAULT_MISMATCH};
    run->no_restart = true;
    gs_run_fail(coordinator, run, &blame, "worker %s slot %d: %s", member->worker, member->slot, what);
}

// True when the world agrees; false when something is still awaited or the run has failed.
static bool compare_world(gs_coordinator *coordinator, gs_run *run) {
    gs_member *first = &run->members[0];
    gs_member *reference = find_reference(run);
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!member->said_hello) return false;
        if (run->job->spec.exact && strcmp(member->arithmetic, first->arithmetic) != 0) {
            refuse_world(coordinator, run, member, "ArithmeticMismatch",
                         "its arithmetic differs from rank 0's, and exact is set",
                         "exact mode needs the same instruction set and BLAS kernel on every host");
            return false;
        }
        if (strcmp(member->data_digest, first->data_digest) != 0) {
            refuse_world(coordinator, run, member, "DataMismatch",
                         "its data files differ from rank 0's",
                         "copy the same files to the data root of every worker");
            return false;
        }
    }
    if (!reference) return false;
    bool waiting = false;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!strcmp(member->params_digest, reference->params_digest)) continue;
        if (!member->params) {
            if (!member->list_asked) send_welcome(coordinator, member, true);
            waiting = true;
            continue;
        }
        gs_status difference = gs_param_specs_compare(reference->params, reference->num_params,
                                                      member->params, member->num_params);
        refuse_world(coordinator, run, member, "PlanMismatch",
                     difference.code ? difference.message : "its parameter list differs", 
                     "every rank must build the same model");
        return false;
    }
    return !waiting;
}

static void prepare_world(gs_coordinator *coordinator, gs_run *run) {
    gs_job *job = run->job;
    gs_member *reference = find_reference(run);
    int64_t begun_ns = gs_now_ns();
    gs_job_explain(coordinator, job, "BuildingPlan", "%d ranks are in", run->num_members);
    gs_status status =
        gs_planner_make(coordinator, run, reference->params, reference->num_params);
    if (status.code) {
        refuse_world(coordinator, run, reference, "PlanRefused", status.message, NULL);
        return;
    }
    gs_metrics_observe_plan(coordinator, (double)(gs_now_ns() - begun_ns) / GS_NS_PER_SEC);
    run->generation = gs_coordinator_take_generation(coordinator);
    job->generation = run->generation;
    if (job->world_size && job->world_size != run->num_members) {
        gs_metrics_count_rescale(coordinator, job, run->num_members > job->world_size ? "up" : "down");
    }
    job->world_size = run->num_members;
    gs_job_metrics_begin_generation(job->metrics, run->num_members);
    gs_timelines_forget(job);
    for (int i = 0; i < run->num_members; i++) {
        run->members[i].rank = i;
        run->members[i].ready = false;
    }
    gs_run_enter(run, GS_RUN_PREPARING, coordinator->timing.prepare_ns);
    gs_event_add(coordinator, job, NULL, GS_SEVERITY_INFO, "GenerationFormed",
                 "generation %u has %d ranks, plan revision %d (%s)", run->generation,
                 run->num_members, job->plan_revision, run->plan_hash);
    for (int i = 0; i < run->num_members; i++) send_prepare(coordinator, run, &run->members[i]);
    gs_coordinator_touch(coordinator, job);
}

static void try_prepare(gs_coordinator *coordinator, gs_run *run) {
    if (run->phase == GS_RUN_LAUNCHING && compare_world(coordinator, run)) {
        prepare_world(coordinator, run);
    }
}

void gs_member_resend(gs_coordinator *coordinator, gs_member *member) {
    gs_run *run = member->job->run;
    switch (run->phase) {
    case GS_RUN_LAUNCHING: break;
    case GS_RUN_PREPARING: send_prepare(coordinator, run, member); break;
    case GS_RUN_CONNECTING:
        send_prepare(coordinator, run, member);
        send_start(run, member);
        break;
    case GS_RUN_TRAINING:
    case GS_RUN_RELOADING:
        send_go(run, member);
        gs_replan_resend(member);
        break;
    case GS_RUN_SETTLING:
    case GS_RUN_ENDING: gs_member_send_abort(run, member); break;
    }
    if (run->draining) gs_member_send_drain(run, member);
}

static void lose_stream(void *owner, gs_rpc_call_handle *call) {
    gs_member *member = owner;
    if (member->stream != call) return;
    member->stream = NULL;
    member->stream_closed = gs_rpc_call_was_closed(call);
    member->stream_lost_ns = gs_now_ns();
}

static gs_status find_caller(gs_coordinator *coordinator, gs_member **out, const gs_rpc_peer *peer,
                             const gs_json *request) {
    uint64_t incarnation = 0, token = 0;
    GS_TRY(gs_json_read_u64(&incarnation, request, "incarnation"));
    GS_TRY(gs_json_read_u64(&token, request, "launch_token"));
    const char *job_id = gs_json_string_or(request, "job", "");
    if (gs_cluster_is_other(coordinator, request))
        return gs_error(GS_NOT_FOUND, "hello: job %s is of cluster %.23s, this is cluster %s", job_id,
                        gs_json_string_or(request, "cluster", ""), coordinator->cluster);
    GS_TRY(gs_cluster_check(coordinator, request, "a trainer"));
    gs_job *job = gs_jobs_by_id_text(coordinator, job_id);
    // Unknown is not over (ABORTED): this may be the wrong coordinator for it.
    if (!job) return gs_error(GS_NOT_FOUND, "hello: job %s is not known here", job_id);
    gs_member *member = gs_u64_map_get(&coordinator->members, incarnation);
    if (!member || member->job != job || member->exited || member->launch_token != token ||
        peer->incarnation != incarnation) {
        return gs_error(GS_ABORTED, "hello: this trainer belongs to no generation of job %s",
                        job->id_text);
    }
    int64_t least = gs_json_int_or(request, "proto_least", GS_PROTOCOL_LEAST);
    int64_t most = gs_json_int_or(request, "proto_most", GS_PROTOCOL_MOST);
    if (least > GS_PROTOCOL_MOST || most < GS_PROTOCOL_LEAST) {
        return gs_error(GS_FAILED_PRECONDITION,
                        "trainer speaks protocol %lld to %lld, the coordinator %d to %d",
                        (long long)least, (long long)most, GS_PROTOCOL_LEAST, GS_PROTOCOL_MOST);
    }
    *out = member;
    return gs_ok();
}

static void check_in(gs_coordinator *coordinator, gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (!run->members[i].stream) return;
    }
    gs_run_enter(run, GS_RUN_TRAINING, 0);
    run->progress_ns = gs_now_ns();
    run->was_reloaded = true;
    gs_event_add(coordinator, run->job, NULL, GS_SEVERITY_INFO, "MembersCheckedIn",
                 "all %d ranks of generation %u went on while the coordinator was away",
                 run->num_members, run->generation);
    gs_status status = gs_replan_consider(coordinator, run);
    if (status.code) gs_log_warn("no plan", "reason=\"%s\"", status.message);
}

void gs_hello(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_coordinator *coordinator = ctx;
    gs_member *member = NULL;
    gs_status status = find_caller(coordinator, &member, peer, request);
    if (status.code) {
        gs_rpc_end(call, status);
        return;
    }
    gs_run *run = member->job->run;
    if (member->stream) gs_rpc_end(member->stream, gs_error(GS_ABORTED, "said hello again"));
    member->stream = call;
    member->stream_closed = false;
    gs_held_keep(&member->stream_held, call, lose_stream, member);
    member->heard_ns = gs_now_ns();
    bool first = !member->said_hello;
    member->said_hello = true;
    member->pid = gs_json_int_or(request, "pid", 0);
    copy_text(member->host, sizeof member->host, request, "host");
    copy_text(member->boot_id, sizeof member->boot_id, request, "boot_id");
    copy_text(member->params_digest, sizeof member->params_digest, request, "params_digest");
    copy_text(member->data_digest, sizeof member->data_digest, request, "data_digest");
    copy_value(member->arithmetic, sizeof member->arithmetic, gs_json_get(request, "arithmetic"));
    int64_t applied_step = gs_member_step_of(request, "applied_step", 0);
    if (applied_step > member->applied_step) member->applied_step = applied_step;

    bool asked = false;
    for (int i = 0; i < run->num_members; i++) asked |= run->members[i].list_asked;
    bool send_params = first ? !asked : member->list_asked && !member->params;
    send_welcome(coordinator, member, send_params && run->phase == GS_RUN_LAUNCHING);
    if (!first) gs_member_resend(coordinator, member);
    if (run->phase == GS_RUN_RELOADING) check_in(coordinator, run);
    try_prepare(coordinator, run);
}

// The member that a bound message comes from: its incarnation, its generation. ABORTED otherwise.
static gs_status find_bound(gs_coordinator *coordinator, gs_member **out, const gs_rpc_peer *peer,
                            const gs_json *request) {
    gs_member *member = gs_u64_map_get(&coordinator->members, peer->incarnation);
    int64_t generation = gs_json_int_or(request, "generation", -1);
    if (!member || member->exited || member->job->id != peer->job ||
        generation != (int64_t)member->job->run->generation) {
        return gs_error(GS_ABORTED, "generation %lld is over", (long long)generation);
    }
    member->heard_ns = gs_now_ns();
    *out = member;
    return gs_ok();
}

static void take_list(gs_coordinator *coordinator, gs_rpc_call_handle *call,
                      const gs_rpc_peer *peer, const gs_json *request) {
    gs_member *member = gs_u64_map_get(&coordinator->members, peer->incarnation);
    if (!member || member->exited || member->job->id != peer->job) {
        gs_rpc_reply(call, gs_error(GS_ABORTED, "this trainer belongs to no generation"), NULL);
        return;
    }
    gs_status status = gs_param_list_add(&member->listed, request);
    gs_rpc_reply(call, status, status.code ? NULL : gs_json_new_object());
    if (status.code) {
        refuse_world(coordinator, member->job->run, member, "PlanRefused", status.message, NULL);
        return;
    }
    if (!member->listed.is_complete) return;
    free(member->params);
    member->params = member->listed.params;
    member->num_params = member->listed.num_params;
    member->listed = (gs_param_list){0};
    try_prepare(coordinator, member->job->run);
}

// The survivors could not save where they stood: steps are taken again.
static void count_lost_steps(gs_coordinator *coordinator, gs_job *job, int64_t base_step) {
    int64_t lost = job->reached_step - base_step;
    job->reached_step = 0;
    if (lost <= 0) return;
    job->lost_steps += lost;
    job->dirty = true;
    gs_event_add(coordinator, job, NULL, GS_SEVERITY_WARNING, "StepsLost",
                 "the job stood at step %lld and goes on from step %lld: %lld steps are taken again",
                 (long long)(base_step + lost), (long long)base_step, (long long)lost);
}

static void start_world(gs_coordinator *coordinator, gs_run *run) {
    gs_member *first = &run->members[0];
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!member->ready) return;
        bool both_known = member->state_digest[0] && first->state_digest[0];
        if (member->applied_step == first->applied_step &&
            (!both_known || !strcmp(member->state_digest, first->state_digest))) {
            continue;
        }
        gs_blame blame = {.kind = GS_FAILURE_ERROR, .member = member, .reason = "StateMismatch",
                          .class = "system", .fault = GS_FAULT_MISMATCH};
        gs_run_fail(coordinator, run, &blame,
                    "rank %d starts from step %lld (%s), rank 0 from step %lld (%s)", i,
                    (long long)member->applied_step, member->state_digest,
                    (long long)first->applied_step, first->state_digest);
        return;
    }
    run->base_step = run->step = first->applied_step;
    count_lost_steps(coordinator, run->job, run->base_step);
    gs_run_enter(run, GS_RUN_CONNECTING, coordinator->timing.connect_ns);
    gs_job_explain(coordinator, run->job, "CreatingCommunicator",
                   "%d ranks agree on plan %s from step %lld", run->num_members, run->plan_hash,
                   (long long)run->base_step);
    for (int i = 0; i < run->num_members; i++) send_start(run, &run->members[i]);
}

void gs_ready(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_coordinator *coordinator = ctx;
    if (gs_json_get(request, "params") && gs_json_int_or(request, "generation", 0) == 0) {
        take_list(coordinator, call, peer, request);
        return;
    }
    gs_member *member = NULL;
    gs_status status = find_bound(coordinator, &member, peer, request);
    if (status.code) {
        gs_rpc_reply(call, status, NULL);
        return;
    }
    gs_run *run = member->job->run;
    const char *hash = gs_json_string_or(request, "plan_hash", "");
    if (run->phase == GS_RUN_PREPARING && strcmp(hash, run->plan_hash) != 0) {
        char what[160];
        snprintf(what, sizeof what, "rank %d computed plan %s, the coordinator %s", member->rank, hash,
                 run->plan_hash);
        gs_rpc_reply(call, gs_error(GS_FAILED_PRECONDITION, "%s", what), NULL);
        refuse_world(coordinator, run, member, "PlanMismatch", what,
                     "run the same build of gradsync everywhere");
        return;
    }
    gs_rpc_reply(call, gs_ok(), gs_json_new_object());
    if (run->phase != GS_RUN_PREPARING) return;
    member->ready = true;
    member->applied_step = gs_member_step_of(request, "applied_step", member->applied_step);
    copy_text(member->state_digest, sizeof member->state_digest, request, "state_digest");
    start_world(coordinator, run);
}

void gs_exchange_bytes(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                       const gs_json *request) {
    gs_member *member = NULL;
    gs_exchange_round *complete = NULL;
    gs_status status = find_bound(ctx, &member, peer, request);
    gs_run *run = status.code ? NULL : member->job->run;
    if (run && run->phase != GS_RUN_CONNECTING && run->phase != GS_RUN_TRAINING) {
        status = gs_error(GS_ABORTED, "generation %u is %s", run->generation,
                          gs_run_phase_name(run->phase));
    }
    if (!status.code) {
        status = gs_exchange_join(&run->exchanges, &complete, run->num_members, member->rank, request, call);
    }
    if (status.code) gs_rpc_reply(call, status, NULL);
    if (complete) gs_exchange_answer(&run->exchanges, complete);
}

void gs_comm_up(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                const gs_json *request) {
    gs_coordinator *coordinator = ctx;
    gs_member *member = NULL;
    gs_status status = find_bound(coordinator, &member, peer, request);
    gs_rpc_reply(call, status, status.code ? NULL : gs_json_new_object());
    if (status.code) return;
    gs_run *run = member->job->run;
    if (run->phase != GS_RUN_CONNECTING) return;
    member->comm_up = true;
    if (member->rank == 0) copy_text(run->backend, sizeof run->backend, request, "backend");
    for (int i = 0; i < run->num_members; i++) {
        if (!run->members[i].comm_up) return;
    }
    gs_run_enter(run, GS_RUN_TRAINING, 0);
    run->progress_ns = gs_now_ns();
    gs_metrics_observe_rendezvous(coordinator, "complete",
                                  (double)(run->progress_ns - run->begun_ns) / GS_NS_PER_SEC);
    gs_event_add(coordinator, run->job, NULL, GS_SEVERITY_INFO, "CommunicatorUp",
                 "%d ranks reduce over %s", run->num_members, run->backend);
    gs_coordinator_touch_now(coordinator, run->job);
    for (int i = 0; i < run->num_members; i++) send_go(run, &run->members[i]);
}
