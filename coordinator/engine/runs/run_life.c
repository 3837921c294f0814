#include "coordinator/engine/runs/run_life.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/base/orders.h"
#include "coordinator/model/memory.h"
#include "coordinator/rules/settle.h"
#include "core/clock.h"

static void bury_round(gs_engine *engine, gs_exchange_round *round, gs_status status) {
    for (int i = 0; i < round->num_ranks; i++)
        gs_reply_error(engine, gs_kept_take(engine, &round->entries[i].held), status);
    gs_mind_bury(engine, round, (void (*)(void *))gs_exchange_free);
}

void gs_run_drop_exchanges(gs_engine *engine, gs_run *run, gs_status status) {
    while (run->exchanges) {
        gs_exchange_round *round = run->exchanges;
        gs_exchange_unlink(&run->exchanges, round);
        bury_round(engine, round, status);
    }
}

void gs_run_release(gs_engine *engine, gs_run *run) {
    gs_status over = gs_error(GS_ABORTED, "the generation is over");
    gs_run_drop_exchanges(engine, run, over);
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        gs_reply_error(engine, gs_kept_take(engine, &member->settle), over);
        gs_reply_error(engine, gs_kept_take(engine, &member->goodbye), over);
        gs_end_stream(engine, gs_kept_take(engine, &member->stream), over);
        gs_u64_map_remove(&engine->state.members, member->incarnation);
    }
    run->job->run = NULL;
    gs_mind_bury(engine, run, (void (*)(void *))gs_run_destroy);
}

// Any row that this life writes has the limit.
void gs_run_recorded(gs_engine *engine, gs_run *run) {
    if (run->told_orphan_ns == run->orphan_ns) return;
    run->told_orphan_ns = run->orphan_ns;
    for (int i = 0; i < run->num_members; i++)
        if (run->members[i].stage < GS_MEMBER_LEAVING) gs_tell_welcome(engine, &run->members[i], false);
}

void gs_run_drain(gs_engine *engine, gs_run *run, bool save, double grace_seconds) {
    gs_mind_log(engine, GS_SEVERITY_INFO, "draining", "job=%s reason=%s save=%d", run->job->id_text,
                run->job->stop_reason, save);
    run->draining = true;
    run->saving = save;
    run->drain_deadline_ns = engine->state.now_ns + (int64_t)(grace_seconds * (double)GS_NS_PER_SEC);
    for (int i = 0; i < run->num_members; i++) gs_tell_drain(engine, &run->members[i]);
    gs_job_touch(engine, run->job);
}

void gs_run_kill(gs_engine *engine, gs_run *run, double grace_seconds) {
    const gs_status over = gs_error(GS_ABORTED, "the generation is over");
    for (int i = 0; i < run->num_members; i++) {
        gs_order_stop_rank(engine, &run->members[i], grace_seconds <= 0, grace_seconds);
        // Whose worker is out of reach lives on, and waits for no survivors any more.
        gs_reply_error(engine, gs_kept_take(engine, &run->members[i].settle), over);
    }
    gs_run_drop_exchanges(engine, run, over);
    gs_run_enter(engine, run, GS_RUN_ENDING, engine->state.timing.leave_ns);
}

static void note_blame(gs_engine *engine, gs_run *run, const gs_blame *blame, const char *message) {
    gs_run_cause *cause = &run->cause;
    cause->set = true;
    cause->kind = blame->kind;
    cause->member = blame->member ? (int)(blame->member - run->members) : -1;
    cause->at_ms = engine->state.wall_ms;
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

void gs_run_fail(gs_engine *engine, gs_run *run, const gs_blame *blame, const char *format, ...) {
    char message[256];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (!run->cause.set || knows_better(run, blame)) note_blame(engine, run, blame, message);
    if (run->phase >= GS_RUN_SETTLING) return;
    gs_job *job = run->job;
    bool trained = run->phase >= GS_RUN_TRAINING;
    gs_note_fault(engine, job, blame->member, run->cause.reason, message, &run->cause.fault);
    gs_mind_count(engine, job, GS_COUNT_FAULT, run->cause.reason, "abort", 0);
    if (job->state == GS_JOB_RUNNING)
        gs_job_show(engine, job, GS_JOB_RECOVERING, run->cause.reason, message);
    gs_run_drop_exchanges(engine, run, gs_error(GS_ABORTED, "generation %u: %s", run->generation, message));
    gs_run_enter(engine, run, GS_RUN_SETTLING, engine->state.timing.settle_ns);
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (member->stage == GS_MEMBER_EXITED) continue;
        // Who stands still is ended by its agent, and so is everybody who has nothing to settle; who
        // said Bye ends by itself.
        bool evicted = blame->evict && blame->member == member;
        if (evicted || (!trained && member->stage != GS_MEMBER_LEAVING))
            gs_order_stop_rank(engine, member, evicted || member->stage == GS_MEMBER_LAUNCHED, 2);
        gs_tell_abort(engine, member);
    }
    // Before most of them are answered: a later life would believe those that it failed by.
    if (trained && !job->held_back) gs_job_write(engine, job);
}

void gs_member_progressed(gs_engine *engine, gs_member *member, int64_t applied_step) {
    gs_run *run = member->job->run;
    gs_job *job = member->job;
    member->heard_ns = engine->state.now_ns;
    if (applied_step > member->applied_step) member->applied_step = applied_step;
    member->heard_at_step = run->step;
    if (applied_step <= run->step) return;
    run->step = applied_step;
    run->progress_ns = member->heard_ns;
    if (applied_step > job->step) job->step = applied_step;
    gs_job_note_progress(engine, job);
    if (applied_step <= run->base_step || run->phase >= GS_RUN_SETTLING) return;
    if (!run->first_step_seen) {
        run->first_step_seen = true;
        job->committed = true;
        job->startup_failures = 0;
        job->world_wanted = 0;
        if (job->failed_ns > 0) {
            gs_mind_count(engine, job, GS_COUNT_RECOVERY, NULL, NULL,
                          (double)(engine->state.now_ns - job->failed_ns) / GS_NS_PER_SEC);
            job->failed_ns = 0;
        }
    }
    if (job->state == GS_JOB_STARTING || job->state == GS_JOB_RECOVERING)
        gs_job_move(engine, job, GS_JOB_RUNNING, "Training", "%d ranks train", run->num_members);
    if (applied_step - run->base_step >= job->spec.restart.healthy_after_steps) job->num_restart_ages = 0;  // forgiven
}

// One rank alone holds the state of the job.
static bool one_can_save(const gs_run *run) {
    return run->job->spec.reducer.sharding == GS_SHARDING_NONE || run->num_members == 1;
}

static bool asks(const gs_member *member) {
    return member->stage == GS_MEMBER_SETTLING && member->settle.call;
}

// Somebody asks who is not evicted.
static bool is_any_believed(const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (asks(&run->members[i]) && !run->members[i].kill_sent) return true;
    }
    return false;
}

// Answers who asks; true when one of them is to save.
static bool answer_settles(gs_engine *engine, gs_run *run, const gs_settle_member *decided) {
    bool saves = false;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!asks(member)) continue;
        bool save = decided[i].save && !run->suspicious && !member->apart && one_can_save(run);
        gs_effect *effect = gs_reply_with(engine, gs_kept_take(engine, &member->settle), GS_REPLY_SETTLE, run->job);
        effect->reply.apply = decided[i].apply;
        effect->reply.save = save;
        saves |= save;
        gs_member_enter(engine, member, GS_MEMBER_SETTLED);
    }
    return saves;
}

void gs_run_settle_now(gs_engine *engine, gs_run *run) {
    gs_settle_member *members = gs_model_alloc((size_t)run->num_members, sizeof *members);
    bool is_any = is_any_believed(run);
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        // Who is evicted may be so for what it said: it keeps nothing from the others.
        members[i].survived = asks(member) && (!is_any || !member->kill_sent);
        members[i].applied_step = member->applied_step;
        members[i].is_apart = member->apart;
        members[i].complete = member->complete && !run->suspicious;
    }
    int64_t reached = gs_settle_decide(members, (size_t)run->num_members, run->step,
                                       gs_checkpoints_newest_step(&run->job->checkpoints));
    bool saves = answer_settles(engine, run, members);
    free(members);
    if (reached >= 0) {
        gs_note_add(engine, run->job, NULL, GS_SEVERITY_INFO, "Settled",
                    "survivors of generation %u stand at step %lld%s", run->generation,
                    (long long)reached, saves ? "; one is to save it" : "");
    }
    // Whoever has not answered by now is not going to. Those who said Bye have a moment (deadlines.h). Whom an earlier life of
    // the coordinator may have answered may be saving.
    for (int i = 0; i < run->num_members && !run->was_settling; i++) {
        gs_member *member = &run->members[i];
        if (member->stage < GS_MEMBER_SETTLED) gs_order_stop_rank(engine, member, true, 0);
    }
    gs_run_enter(engine, run, GS_RUN_ENDING,
                 saves || run->was_settling ? engine->state.timing.save_ns : engine->state.timing.leave_ns);
}

void gs_run_try_settle(gs_engine *engine, gs_run *run) {
    if (run->phase != GS_RUN_SETTLING) return;
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        if (member->stage < GS_MEMBER_LEAVING && !asks(member)) return;
    }
    gs_run_settle_now(engine, run);
}

// A clean exit is one that was announced, or that follows an abort.
static void judge_exit(gs_engine *engine, gs_run *run, gs_member *member) {
    if (run->phase >= GS_RUN_SETTLING || run->job->state == GS_JOB_STOPPING) return;
    gs_bye_reason said = member->bye.reason;
    bool announced = member->exit_code == 0 && (said == GS_BYE_TARGET_REACHED || said == GS_BYE_DATA_ENDED ||
                                                said == GS_BYE_DRAINED);
    announced |= said == GS_BYE_ORPHANED;
    if (announced) return;
    int rank = gs_member_index(member);
    bool error = member->exit_code > 0 && member->exit_code != 75 && member->exit_code != 76;
    gs_blame blame = {.kind = error ? GS_FAILURE_ERROR : GS_FAILURE_LOST,
                      .member = member,
                      .reason = error ? "WorkerError" : "WorkerLost",
                      .fault = error ? GS_FAULT_ERROR : GS_FAULT_PEER_LOST};
    if (member->bye.error[0]) {
        gs_run_fail(engine, run, &blame, "rank %d: %s", rank, member->bye.error);
    } else if (member->signal) {
        gs_run_fail(engine, run, &blame, "rank %d on %s was ended by signal %d (%s)", rank,
                    member->host, member->signal, strsignal(member->signal));
    } else if (member->exit_code < 0) {
        gs_run_fail(engine, run, &blame, "rank %d was lost with worker %s", rank, member->worker);
    } else {
        gs_run_fail(engine, run, &blame, "rank %d on %s exited with code %d", rank, member->host,
                    member->exit_code);
    }
}

// What a trainer announced counts more than a kill that met it on its way out.
static void note_exit(gs_member *member, int exit_code, int signal) {
    bool unseen = signal == 0 && exit_code < 0, spoke = member->bye.reason != GS_BYE_NONE;
    if (spoke && (unseen || (signal && member->kill_sent))) {
        exit_code = member->bye.exit_code;
        signal = 0;
    }
    if (spoke) member->kill_sent = false;
    member->exit_code = exit_code;
    member->signal = signal;
}

void gs_member_exited(gs_engine *engine, gs_member *member, int exit_code, int signal, char *log_tail) {
    gs_run *run = member->job->run;
    note_exit(member, exit_code, signal);
    gs_reply_error(engine, gs_kept_take(engine, &member->settle), gs_error(GS_ABORTED, "this trainer has ended"));
    gs_member_enter(engine, member, GS_MEMBER_EXITED);
    member->exited_ns = engine->state.now_ns;
    if (member->log_tail) free(log_tail);
    else member->log_tail = log_tail;
    gs_mind_log(engine, GS_SEVERITY_INFO, "trainer exited",
                "job=%s rank=%d worker=%s slot=%d exit_code=%d signal=%d", member->job->id_text,
                gs_member_index(member), member->worker, member->slot, member->exit_code, member->signal);
    judge_exit(engine, run, member);
    gs_run_try_settle(engine, run);
    engine->state.schedule_needed = true;  // the run may be over: looked at when the turn ends
}
