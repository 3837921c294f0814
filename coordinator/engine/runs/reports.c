#include "coordinator/engine/runs/reports.h"

#include <stdio.h>

#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/runs/claims.h"
#include "coordinator/engine/runs/complaints.h"
#include "coordinator/engine/runs/farewells.h"
#include "coordinator/engine/runs/rendezvous.h"
#include "coordinator/engine/runs/replan.h"
#include "coordinator/engine/runs/run_life.h"

// Its first word to this life of the coordinator counts for what is known of it from an earlier one, which wrote down the furthest step
// of all ranks, whoever had told it.
static void note_told(const gs_engine *engine, gs_member *member, int64_t applied_step) {
    if (!member->told_step_ns) member->applied_step = applied_step;
    member->told_step = applied_step;
    member->told_step_ns = engine->state.now_ns;
}

// Bound to the generation that lives, and further than anybody has said. Before go a trainer tells the step that it
// was started from.
static void note_step(gs_engine *engine, gs_member *member, int64_t generation, int64_t applied_step) {
    const gs_run *run = member->job->run;
    if (run->phase < GS_RUN_TRAINING || generation != (int64_t)run->generation) return;
    if (!gs_claim_is_possible(engine, member, applied_step)) return;
    note_told(engine, member, applied_step);
    if (applied_step > run->step) gs_member_progressed(engine, member, applied_step);
    else if (applied_step > member->applied_step) member->applied_step = applied_step;
}

// That it has not begun though it was told to. Where its words did not come through, that order may not have either.
static void note_membership(const gs_engine *engine, gs_member *member, gs_membership membership) {
    int64_t now_ns = engine->state.now_ns, gap_ns = engine->state.timing.dead_ns;
    if (gap_ns < 3 * member->told.heartbeat_ns) gap_ns = 3 * member->told.heartbeat_ns;
    bool is_idle = membership == GS_MEMBERSHIP_FORMS || membership == GS_MEMBERSHIP_WAITS;
    bool goes_on = member->idle_since_ns && now_ns - member->idle_told_ns < gap_ns;
    if (!is_idle || member->job->run->phase != GS_RUN_TRAINING) member->idle_since_ns = 0;
    else if (!goes_on) member->idle_since_ns = now_ns;
    member->idle_told_ns = now_ns;
}

void gs_on_heartbeat(gs_engine *engine, gs_member *member, const gs_engine_event *event) {
    const gs_heartbeat_report *report = &event->heartbeat;
    member->heard_at_step = member->job->run->step;
    member->heartbeat_ns = member->told.heartbeat_ns;
    if (report->rss_bytes >= 0) member->rss_bytes = report->rss_bytes;
    if (report->phase) {
        snprintf(member->phase, sizeof member->phase, "%s", report->phase);
        member->activity = report->activity;
    }
    note_membership(engine, member, report->membership);
    gs_replan_note(engine, member, event->from.generation, &report->plan);
    note_step(engine, member, event->from.generation, report->applied_step);
}

void gs_on_step(gs_engine *engine, gs_member *member, gs_engine_event *event) {
    gs_run *run = member->job->run;
    if (run->phase < GS_RUN_TRAINING) {
        event->was_admitted = false;
        return;
    }
    if (!gs_claim_is_possible(engine, member, event->step.applied_step)) return;
    note_told(engine, member, event->step.applied_step);
    if (event->step.step_seconds > run->longest_step_seconds) run->longest_step_seconds = event->step.step_seconds;
    gs_member_progressed(engine, member, event->step.applied_step);
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

void gs_on_fault(gs_engine *engine, gs_member *member, const gs_engine_event *event) {
    gs_reply_ok(engine, event->from.call);
    gs_run *run = member->job->run;
    int sender = gs_member_index(member);
    gs_fault_facts seen = *event->fault.facts;
    gs_fault_facts_bound(&seen, run->num_members);
    if (seen.reporter < 0) seen.reporter = sender;
    const char *kind = gs_fault_kind_name(seen.kind);
    gs_mind_count(engine, run->job, GS_COUNT_FAULT, kind, "reported", 0);
    gs_complaints_take(run, &seen);
    if (spoils_state(seen.kind)) run->suspicious = true;
    gs_blame blame = judge_fault(run, member, &seen);
    gs_run_fail(engine, run, &blame, "rank %d reports %s: %s", sender, kind, event->fault.text);
}

void gs_on_settle(gs_engine *engine, gs_member *member, const gs_engine_event *event) {
    gs_run *run = member->job->run;
    const gs_settle_question *question = &event->settle;
    if (run->phase == GS_RUN_ENDING || member->stage > GS_MEMBER_SETTLING) {
        gs_reply_error(engine, event->from.call,
                       gs_error(GS_ABORTED, "generation %u has been settled", run->generation));
        return;
    }
    // It was evicted, perhaps for what it said; or no step of this job is so far.
    bool is_believed = !member->kill_sent && question->applied_step <= member->job->spec.steps.target;
    if (question->applied_step >= 0 && is_believed) member->applied_step = question->applied_step;
    member->complete = question->complete && is_believed;
    member->apart = question->apart && gs_job_hook_trains_apart(&member->job->spec.reducer.hook);  // else it would be believed to be anywhere
    gs_reply_error(engine, gs_kept_take(engine, &member->settle), gs_error(GS_ABORTED, "settled again"));
    gs_kept_set(engine, &member->settle, event->from.call, GS_CALL_SETTLE, member);
    if (member->stage < GS_MEMBER_SETTLING) gs_member_enter(engine, member, GS_MEMBER_SETTLING);
    if (run->phase < GS_RUN_SETTLING) {  // it noticed before we did
        gs_blame blame = {.kind = GS_FAILURE_LOST, .reason = "WorkerLost", .class = "infrastructure",
                          .fault = GS_FAULT_ABORTED};
        gs_run_fail(engine, run, &blame, "rank %d left generation %u", gs_member_index(member),
                    run->generation);
    }
    gs_run_try_settle(engine, run);
}

void gs_on_bye(gs_engine *engine, gs_member *member, const gs_engine_event *event) {
    const gs_bye_report *report = &event->bye;
    gs_farewell *bye = &member->bye;
    gs_run *run = member->job->run;
    gs_job *job = member->job;
    *bye = (gs_farewell){.reason = report->reason, .exit_code = report->exit_code, .at_ns = engine->state.now_ns};
    snprintf(bye->class, sizeof bye->class, "%s", report->class);
    snprintf(bye->error, sizeof bye->error, "%s", report->error);
    snprintf(bye->hint, sizeof bye->hint, "%s", report->hint);
    if (member->stage < GS_MEMBER_LEAVING) {
        // Who leaves does not wait for an answer.
        gs_reply_error(engine, gs_kept_take(engine, &member->settle), gs_error(GS_ABORTED, "said bye"));
        gs_member_enter(engine, member, GS_MEMBER_LEAVING);
    }
    note_step(engine, member, event->from.generation, report->applied_step);
    gs_replan_note(engine, member, event->from.generation, &report->plan);
    if (report->has_sample && gs_member_index(member) == 0) gs_job_touch(engine, job);
    if (bye->reason == GS_BYE_ERROR && job->state != GS_JOB_STOPPING) {
        gs_blame blame = {.kind = GS_FAILURE_ERROR, .member = member, .reason = "WorkerError",
                          .class = bye->class[0] ? bye->class : NULL,
                          .hint = bye->hint,
                          .fault = GS_FAULT_ERROR};
        gs_run_fail(engine, run, &blame, "rank %d: %s", gs_member_index(member), bye->error);
    }
    gs_farewell_take(engine, member, event->from.call);
    gs_rendezvous_check_in(engine, run);  // it was the one that was waited for
    gs_run_try_settle(engine, run);
}
