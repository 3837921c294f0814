#include "coordinator/membership.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/agents.h"
#include "coordinator/checkpoints.h"
#include "coordinator/events.h"
#include "coordinator/job_control.h"
#include "coordinator/metric_families.h"
#include "coordinator/replan.h"
#include "coordinator/settle.h"
#include "core/clock.h"
#include "core/log.h"

#define MAX_STEP ((int64_t)1 << 53)

void gs_member_send_abort(gs_run *run, gs_member *member) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "abort");
    gs_json_set_int(item, "generation", run->generation);
    gs_json_set_string(item, "reason", run->cause.message);
    gs_json *suspects = gs_json_new_array();
    if (run->cause.member >= 0) gs_json_push(suspects, gs_json_new_int(run->cause.member));
    gs_json_set(item, "suspects", suspects);
    gs_member_send(member, item);
}

void gs_member_send_drain(gs_run *run, gs_member *member) {
    gs_json *item = gs_json_new_object();
    gs_json_set_string(item, "type", "drain");
    gs_json_set_string(item, "reason", run->job->stop_reason);
    gs_json_set_bool(item, "save", run->saving);
    gs_member_send(member, item);
}

void gs_run_drain(gs_coordinator *coordinator, gs_run *run, const char *reason, bool save,
                  double grace_seconds) {
    gs_log_info("draining", "job=%s reason=%s save=%d", run->job->id_text, reason, save);
    run->draining = true;
    run->saving = save;
    run->phase_deadline_ns = gs_now_ns() + (int64_t)(grace_seconds * (double)GS_NS_PER_SEC);
    for (int i = 0; i < run->num_members; i++) gs_member_send_drain(run, &run->members[i]);
    gs_coordinator_touch(coordinator, run->job);
}

void gs_run_kill(gs_coordinator *coordinator, gs_run *run, double grace_seconds) {
    for (int i = 0; i < run->num_members; i++) {
        gs_agent_stop_rank(coordinator, &run->members[i], grace_seconds <= 0, grace_seconds);
    }
    gs_exchange_drop(&run->exchanges, gs_error(GS_ABORTED, "the generation is over"));
    gs_run_enter(run, GS_RUN_ENDING, coordinator->timing.leave_ns);
}

static void note_blame(gs_run *run, const gs_blame *blame, const char *message) {
    gs_run_cause *cause = &run->cause;
    cause->set = true;
    cause->kind = blame->kind;
    cause->member = blame->member ? (int)(blame->member - run->members) : -1;
    cause->at_ms = gs_wall_ms();
    cause->step = run->step;
    cause->fault = blame->seen ? *blame->seen : gs_fault_facts_of(blame->fault, cause->member);
    snprintf(cause->reason, sizeof cause->reason, "%s", blame->reason);
    snprintf(cause->message, sizeof cause->message, "%s", message);
    snprintf(cause->class, sizeof cause->class, "%s", blame->class ? blame->class : "");
    snprintf(cause->hint, sizeof cause->hint, "%s", blame->hint ? blame->hint : "");
}

// That a rank aborted says nothing but who did: why it did, it says itself.
static bool knows_better(const gs_run *run, const gs_blame *blame) {
    const gs_run_cause *cause = &run->cause;
    return cause->fault.kind == GS_FAULT_ABORTED && blame->fault != GS_FAULT_ABORTED &&
           blame->member && cause->member == (int)(blame->member - run->members);
}

void gs_run_fail(gs_coordinator *coordinator, gs_run *run, const gs_blame *blame,
                 const char *format, ...) {
    char message[256];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (!run->cause.set || knows_better(run, blame)) note_blame(run, blame, message);
    if (run->phase >= GS_RUN_SETTLING) return;
    bool trained = run->phase >= GS_RUN_TRAINING;
    gs_event_add_fault(coordinator, run->job, blame->member, run->cause.reason, message,
                       &run->cause.fault);
    gs_metrics_count_fault(coordinator, run->job, run->cause.reason, "abort");
    if (run->job->state == GS_JOB_RUNNING) {
        gs_job_show(coordinator, run->job, GS_JOB_RECOVERING, run->cause.reason, message);
    }
    gs_exchange_drop(&run->exchanges, gs_error(GS_ABORTED, "generation %u: %s", run->generation, message));
    gs_run_enter(run, GS_RUN_SETTLING, coordinator->timing.settle_ns);
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (member->exited) continue;
        // Who stands still is ended by its agent, and so is everybody who has nothing to settle; who
        // said Bye ends by itself.
        bool evicted = blame->evict && blame->member == member;
        if (evicted || (!trained && !member->said_bye)) {
            gs_agent_stop_rank(coordinator, member, evicted || !member->said_hello, 2);
        }
        if (member->stream) gs_member_send_abort(run, member);
    }
}

int64_t gs_member_step_of(const gs_json *message, const char *key, int64_t fallback) {
    int64_t step = gs_json_int_or(message, key, fallback);
    return step < 0 ? 0 : step > MAX_STEP ? MAX_STEP : step;
}

void gs_member_progressed(gs_coordinator *coordinator, gs_member *member, int64_t applied_step) {
    gs_run *run = member->job->run;
    gs_job *job = member->job;
    member->heard_ns = gs_now_ns();
    if (applied_step > member->applied_step) member->applied_step = applied_step;
    member->heard_at_step = run->step;
    if (applied_step <= run->step) return;
    run->step = applied_step;
    run->progress_ns = member->heard_ns;
    if (applied_step > job->step) job->step = applied_step;
    if (!job->dirty) {  // progress is written behind, without a new version
        job->dirty = true;
        job->dirty_since_ns = gs_now_ns() + GS_NS_PER_SEC;
    }
    if (applied_step <= run->base_step || run->phase >= GS_RUN_SETTLING) return;
    if (!run->first_step_seen) {
        run->first_step_seen = true;
        job->committed = true;
        job->startup_failures = 0;
        job->world_wanted = 0;
        if (job->failed_ns > 0) {
            gs_metrics_observe_recovery(
                coordinator, job, (double)(gs_now_ns() - job->failed_ns) / GS_NS_PER_SEC);
            job->failed_ns = 0;
        }
    }
    if (job->state == GS_JOB_STARTING || job->state == GS_JOB_RECOVERING) {
        gs_job_move(coordinator, job, GS_JOB_RUNNING, "Training", "%d ranks train",
                    run->num_members);
    }
    if (applied_step - run->base_step >= job->spec.restart.healthy_after_steps) {
        job->num_restart_times = 0;  // forgiven
    }
}

// One rank alone holds the state of the job.
static bool one_can_save(const gs_run *run) {
    return run->job->spec.reducer.sharding == GS_SHARDING_NONE || run->num_members == 1;
}

void gs_run_settle_now(gs_coordinator *coordinator, gs_run *run) {
    gs_settle_member *members = calloc((size_t)run->num_members, sizeof *members);
    bool saves = false;
    for (int i = 0; members && i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        members[i].survived = member->settle && !member->exited;
        members[i].applied_step = member->applied_step;
        members[i].complete = member->complete && !run->suspicious;
    }
    int64_t reached = -1;
    if (members) {
        reached = gs_settle_decide(members, (size_t)run->num_members, run->step,
                                   gs_checkpoints_newest_step(run->job));
    }
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!member->settle) continue;
        gs_json *reply = gs_json_new_object();
        bool save = members && members[i].save && !run->suspicious && !member->apart && one_can_save(run);
        gs_json_set_bool(reply, "apply", members && members[i].apply);
        gs_json_set_bool(reply, "save", save);
        saves |= save;
        gs_rpc_reply(member->settle, gs_ok(), reply);
        member->settle = NULL;
        member->settled = true;
    }
    free(members);
    if (reached >= 0) {
        gs_event_add(coordinator, run->job, NULL, GS_SEVERITY_INFO, "Settled",
                     "survivors of generation %u stand at step %lld%s", run->generation,
                     (long long)reached, saves ? "; one is to save it" : "");
    }
    // Whoever has not answered by now is not going to. Those who said Bye have a moment (verdicts.h).
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!member->settled && !member->said_bye) gs_agent_stop_rank(coordinator, member, true, 0);
    }
    gs_run_enter(run, GS_RUN_ENDING,
                 saves ? coordinator->timing.save_ns : coordinator->timing.leave_ns);
}

static void try_settle(gs_coordinator *coordinator, gs_run *run) {
    if (run->phase != GS_RUN_SETTLING) return;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!member->exited && !member->settle && !member->said_bye) return;
    }
    gs_run_settle_now(coordinator, run);
}

// A clean exit is one that was announced, or that follows an abort.
static void judge_exit(gs_coordinator *coordinator, gs_run *run, gs_member *member) {
    if (run->phase >= GS_RUN_SETTLING || run->job->state == GS_JOB_STOPPING) return;
    bool announced = member->said_bye && member->exit_code == 0 &&
                     (!strcmp(member->bye_reason, "target_reached") ||
                      !strcmp(member->bye_reason, "data_ended") ||
                      !strcmp(member->bye_reason, "drained"));
    announced |= member->said_bye && !strcmp(member->bye_reason, "orphaned");
    if (announced) return;
    int rank = gs_member_rank_hint(member);
    bool error = member->exit_code > 0 && member->exit_code != 75 && member->exit_code != 76;
    gs_blame blame = {.kind = error ? GS_FAILURE_ERROR : GS_FAILURE_LOST,
                      .member = member,
                      .reason = error ? "WorkerError" : "WorkerLost",
                      .fault = error ? GS_FAULT_ERROR : GS_FAULT_PEER_LOST};
    if (member->bye_error[0]) {
        gs_run_fail(coordinator, run, &blame, "rank %d: %s", rank, member->bye_error);
    } else if (member->signal) {
        gs_run_fail(coordinator, run, &blame, "rank %d on %s was ended by signal %d (%s)", rank,
                    member->host, member->signal, strsignal(member->signal));
    } else if (member->exit_code < 0) {
        gs_run_fail(coordinator, run, &blame, "rank %d was lost with worker %s", rank,
                    member->worker);
    } else {
        gs_run_fail(coordinator, run, &blame, "rank %d on %s exited with code %d", rank, member->host,
                    member->exit_code);
    }
}

// What a trainer announced counts more than a kill that met it on its way out.
static void note_exit(gs_member *member, int exit_code, int signal) {
    bool unseen = signal == 0 && exit_code < 0;
    if (member->said_bye && (unseen || (signal && member->kill_sent))) {
        exit_code = member->bye_exit_code;
        signal = 0;
    }
    if (member->said_bye) member->kill_sent = false;
    member->exited = true;
    member->exit_code = exit_code;
    member->signal = signal;
}

void gs_member_exited(gs_coordinator *coordinator, gs_member *member, int exit_code, int signal,
                      const gs_json *log_tail) {
    gs_run *run = member->job->run;
    note_exit(member, exit_code, signal);
    member->exited_ns = gs_now_ns();
    if (log_tail && !member->log_tail) member->log_tail = gs_json_copy(log_tail);
    if (member->settle) {
        gs_rpc_reply(member->settle, gs_error(GS_ABORTED, "this trainer has ended"), NULL);
        member->settle = NULL;
    }
    gs_log_info("trainer exited", "job=%s rank=%d worker=%s slot=%d exit_code=%d signal=%d",
                member->job->id_text, gs_member_rank_hint(member), member->worker, member->slot,
                member->exit_code, member->signal);
    judge_exit(coordinator, run, member);
    try_settle(coordinator, run);
    coordinator->schedule_needed = true;  // the run may be over: looked at when the turn ends
}

static gs_member *find_member(gs_coordinator *coordinator, const gs_rpc_peer *peer) {
    gs_member *member = gs_u64_map_get(&coordinator->members, peer->incarnation);
    return member && !member->exited && member->job->id == peer->job ? member : NULL;
}

void gs_heartbeat(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                  const gs_json *request) {
    (void)call;
    gs_member *member = find_member(ctx, peer);
    if (!member) return;
    gs_run *run = member->job->run;
    member->heard_ns = gs_now_ns();
    member->heard_at_step = run->step;
    member->rss_bytes = gs_json_int_or(request, "rss_bytes", member->rss_bytes);
    snprintf(member->phase, sizeof member->phase, "%s",
             gs_json_string_or(request, "phase", member->phase));
    gs_replan_note(ctx, member, request);
    int64_t applied_step = gs_member_step_of(request, "applied_step", 0);
    bool bound = gs_json_int_or(request, "generation", 0) == (int64_t)run->generation;
    if (bound && run->generation && applied_step > run->step) {
        gs_member_progressed(ctx, member, applied_step);
    }
}

static gs_status find_bound(gs_coordinator *coordinator, gs_member **out, const gs_rpc_peer *peer,
                            const gs_json *request) {
    gs_member *member = find_member(coordinator, peer);
    int64_t generation = gs_json_int_or(request, "generation", -1);
    if (!member || generation != (int64_t)member->job->run->generation) {
        return gs_error(GS_ABORTED, "generation %lld is over", (long long)generation);
    }
    member->heard_ns = gs_now_ns();
    *out = member;
    return gs_ok();
}

// Whom a fault of `member`'s report is laid to. One, though several may be accused: whoever reports them may be
// the one that is cut off, and a kill cannot be taken back. The others are asked to settle, and who does not
// answer is ended then.
static gs_blame judge_fault(gs_run *run, gs_member *member, const gs_fault_facts *seen) {
    gs_member *accused = gs_run_member_of_rank(run, gs_fault_first_accused(seen));
    gs_blame blame = {.kind = GS_FAILURE_LOST, .member = accused, .reason = "WorkerLost",
                      .class = "infrastructure", .fault = seen->kind, .seen = seen};
    switch (seen->kind) {
    case GS_FAULT_TIMEOUT:
        blame.reason = "WorkerHung";
        blame.evict = true;
        break;
    case GS_FAULT_PEER_LOST: break;
    case GS_FAULT_ABORTED:
        // It had a reason of its own, unless it only passed on what it was told.
        blame.member = seen->reporter >= 0 ? gs_run_member_of_rank(run, seen->reporter) : NULL;
        break;
    case GS_FAULT_DAMAGED:
        blame.evict = true;  // what else it writes to is anybody's memory
        break;
    default:
        blame.kind = GS_FAILURE_ERROR;
        blame.reason = "WorkerError";
        blame.class = seen->kind == GS_FAULT_INTERNAL ? "system" : NULL;
        if (!accused) blame.member = member;
    }
    return blame;
}

// After these nobody's memory is to be trusted.
static bool spoils_state(gs_fault_kind kind) {
    return kind == GS_FAULT_NUMERICS || kind == GS_FAULT_DIVERGENCE || kind == GS_FAULT_DAMAGED;
}

void gs_fault(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
              const gs_json *request) {
    gs_coordinator *coordinator = ctx;
    gs_member *member = NULL;
    gs_status status = find_bound(coordinator, &member, peer, request);
    gs_rpc_reply(call, status, status.code ? NULL : gs_json_new_object());
    if (status.code) return;
    gs_run *run = member->job->run;
    int sender = gs_member_rank_hint(member);
    const gs_fault_facts seen = gs_fault_facts_read(request, sender, run->num_members);
    const char *kind = gs_fault_kind_name(seen.kind);
    gs_metrics_count_fault(coordinator, run->job, kind, "reported");
    if (spoils_state(seen.kind)) run->suspicious = true;
    gs_blame blame = judge_fault(run, member, &seen);
    gs_run_fail(coordinator, run, &blame, "rank %d reports %s: %s", sender, kind,
                gs_json_string_or(request, "text", ""));
}

static void forget_settle(void *owner, gs_rpc_call_handle *call) {
    gs_member *member = owner;
    if (member->settle == call) member->settle = NULL;
}

void gs_settle(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
               const gs_json *request) {
    gs_coordinator *coordinator = ctx;
    gs_member *member = NULL;
    gs_status status = find_bound(coordinator, &member, peer, request);
    gs_run *run = status.code ? NULL : member->job->run;
    if (run && run->phase == GS_RUN_ENDING) {
        status = gs_error(GS_ABORTED, "generation %u has been settled", run->generation);
    }
    if (status.code) {
        gs_rpc_reply(call, status, NULL);
        return;
    }
    member->applied_step = gs_member_step_of(request, "applied_step", member->applied_step);
    member->complete = gs_json_bool_or(request, "complete", false);
    member->apart = gs_json_bool_or(request, "apart", false);
    if (member->settle) gs_rpc_reply(member->settle, gs_error(GS_ABORTED, "settled again"), NULL);
    member->settle = call;
    gs_held_keep(&member->settle_held, call, forget_settle, member);
    if (run->phase < GS_RUN_SETTLING) {  // it noticed before we did
        gs_blame blame = {.kind = GS_FAILURE_LOST, .reason = "WorkerLost", .class = "infrastructure",
                          .fault = GS_FAULT_ABORTED};
        gs_run_fail(coordinator, run, &blame, "rank %d left generation %u",
                    gs_member_rank_hint(member), run->generation);
    }
    try_settle(coordinator, run);
}

void gs_bye(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request) {
    gs_coordinator *coordinator = ctx;
    gs_member *member = find_member(coordinator, peer);
    if (!member) {
        gs_rpc_reply(call, gs_error(GS_ABORTED, "this trainer belongs to no generation"), NULL);
        return;
    }
    gs_rpc_reply(call, gs_ok(), gs_json_new_object());
    gs_run *run = member->job->run;
    gs_job *job = member->job;
    member->said_bye = true;
    member->bye_ns = gs_now_ns();
    member->bye_exit_code = (int)gs_json_int_or(request, "exit_code", 0);
    snprintf(member->bye_reason, sizeof member->bye_reason, "%s",
             gs_json_string_or(request, "reason", ""));
    snprintf(member->bye_class, sizeof member->bye_class, "%s",
             gs_json_string_or(request, "class", ""));
    snprintf(member->bye_error, sizeof member->bye_error, "%s",
             gs_json_string_or(request, "error", ""));
    snprintf(member->bye_hint, sizeof member->bye_hint, "%s", gs_json_string_or(request, "hint", ""));
    int64_t applied_step = gs_member_step_of(request, "applied_step", 0);
    if (gs_json_int_or(request, "generation", 0) == (int64_t)run->generation && run->generation &&
        applied_step > run->step) {
        gs_member_progressed(coordinator, member, applied_step);
    }
    gs_replan_note(coordinator, member, request);
    const char *sample = gs_json_string_or(request, "sample", NULL);
    if (sample && gs_member_rank_hint(member) == 0) {
        free(job->sample);
        job->sample = strdup(sample);
        gs_coordinator_touch(coordinator, job);
    }
    if (!strcmp(member->bye_reason, "error") && job->state != GS_JOB_STOPPING) {
        gs_blame blame = {.kind = GS_FAILURE_ERROR, .member = member, .reason = "WorkerError",
                          .class = member->bye_class[0] ? member->bye_class : NULL,
                          .hint = member->bye_hint,
                          .fault = GS_FAULT_ERROR};
        gs_run_fail(coordinator, run, &blame, "rank %d: %s", gs_member_rank_hint(member),
                    member->bye_error);
    }
    try_settle(coordinator, run);
}
