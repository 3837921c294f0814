#include "coordinator/engine/runs/run_end.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/engine/base/checkpoints.h"
#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/base/part_saves.h"
#include "coordinator/engine/runs/complaints.h"
#include "coordinator/engine/runs/run_life.h"
#include "core/clock.h"

static bool is_error_code(int exit_code) {
    return exit_code > 0 && exit_code != 75 && exit_code != 76;
}

// The first that ended by itself, when nobody else named a culprit.
static int find_culprit(const gs_run *run) {
    int first = -1;
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        bool own_doing = (member->signal && !member->kill_sent) || is_error_code(member->exit_code) ||
                         member->bye.reason == GS_BYE_ERROR;
        if (own_doing && (first < 0 || member->exited_ns < run->members[first].exited_ns)) first = i;
    }
    return first;
}

static void complete_cause(const gs_engine *engine, gs_run *run) {
    gs_run_cause *cause = &run->cause;
    if (cause->member < 0) cause->member = find_culprit(run);
    if (!cause->set) {
        cause->set = true;
        cause->at_ms = engine->state.wall_ms;
        cause->step = run->step;
        cause->fault = gs_fault_facts_of(GS_FAULT_PEER_LOST, cause->member);
        snprintf(cause->reason, sizeof cause->reason, "WorkerLost");
        snprintf(cause->message, sizeof cause->message, "the ranks ended before the target");
    }
    if (cause->member < 0) return;
    // What the culprit itself left behind says more than what others saw of its end.
    const gs_member *culprit = &run->members[cause->member];
    bool spoke = culprit->bye.reason == GS_BYE_ERROR;
    if (cause->kind == GS_FAILURE_LOST && !culprit->kill_sent &&
        (spoke || is_error_code(culprit->exit_code))) {
        cause->kind = GS_FAILURE_ERROR;
        cause->fault.kind = GS_FAULT_ERROR;
        snprintf(cause->reason, sizeof cause->reason, "WorkerError");
        cause->class[0] = '\0';
        if (!spoke) {
            snprintf(cause->message, sizeof cause->message, "rank %d on %s exited with code %d",
                     cause->member, culprit->host, culprit->exit_code);
        }
    }
    if (spoke && culprit->bye.error[0]) {
        snprintf(cause->message, sizeof cause->message, "rank %d: %.200s", cause->member, culprit->bye.error);
        if (!cause->hint[0]) snprintf(cause->hint, sizeof cause->hint, "%s", culprit->bye.hint);
        if (culprit->bye.class[0]) snprintf(cause->class, sizeof cause->class, "%s", culprit->bye.class);
    }
    if (!culprit->signal && culprit->exit_code < 0 && !culprit->kill_sent) {
        snprintf(cause->message, sizeof cause->message, "rank %d was lost with worker %s", cause->member,
                 culprit->worker);
    }
    if (culprit->signal && !culprit->kill_sent) {
        snprintf(cause->message, sizeof cause->message, "rank %d on %s was ended by signal %d (%s)",
                 cause->member, culprit->host, culprit->signal, strsignal(culprit->signal));
    }
}

static int count_recent_restarts(const gs_engine *engine, gs_job *job) {
    int64_t age_ns = gs_job_age_ns(job, engine->state.now_ns);
    int64_t window_ns = (int64_t)(job->spec.restart.window_seconds * (double)GS_NS_PER_SEC);
    int kept = 0;
    for (int i = 0; i < job->num_restart_ages; i++) {
        if (job->restart_ages_ns[i] >= age_ns - window_ns) job->restart_ages_ns[kept++] = job->restart_ages_ns[i];
    }
    job->num_restart_ages = kept;
    return kept;
}

// A restart of a job that came further than ever before is no part of the budget: what ends it is going nowhere.
static void note_restart(const gs_engine *engine, gs_job *job, bool has_advanced) {
    job->restarts++;
    if (has_advanced) {
        job->num_restart_ages = 0;
        return;
    }
    if (job->num_restart_ages == GS_JOB_MAX_RESTARTS_KEPT) {
        memmove(job->restart_ages_ns, job->restart_ages_ns + 1,
                (GS_JOB_MAX_RESTARTS_KEPT - 1) * sizeof job->restart_ages_ns[0]);
        job->num_restart_ages--;
    }
    job->restart_ages_ns[job->num_restart_ages++] = gs_job_age_ns(job, engine->state.now_ns);
}

static gs_restart_decision decide(const gs_engine *engine, gs_run *run, int *recent) {
    gs_job *job = run->job;
    const gs_run_cause *cause = &run->cause;
    const gs_member *culprit = cause->member >= 0 ? &run->members[cause->member] : NULL;
    *recent = count_recent_restarts(engine, job);
    gs_restart_facts facts = {.kind = cause->kind,
                              .exit_code = culprit && !culprit->kill_sent ? culprit->exit_code : -1,
                              .committed = job->committed,
                              .startup_failures = job->startup_failures,
                              .restarts_in_window = *recent};
    gs_restart_decision decision = gs_restart_decide(&job->spec, &facts);
    if (run->no_restart && decision.action != GS_RESTART_FAIL)
        decision = (gs_restart_decision){.action = GS_RESTART_FAIL, .reason = cause->reason};
    return decision;
}

static void fail_job(gs_engine *engine, gs_job *job, const gs_restart_decision *decision,
                     const gs_run_cause *cause, int recent) {
    if (decision->exhausted) {
        gs_job_end(engine, job, GS_JOB_FAILED, decision->reason, "%d restarts within %g s; the last: %s",
                   recent, job->spec.restart.window_seconds, cause->message);
    } else {
        // Mismatches have names of their own.
        gs_job_end(engine, job, GS_JOB_FAILED, cause->reason, "%s", cause->message);
    }
}

// The run is released by the caller, and stays readable for this step.
static void end_failed(gs_engine *engine, gs_run *run) {
    gs_job *job = run->job;
    complete_cause(engine, run);
    const gs_run_cause *cause = &run->cause;
    gs_effect *shown = gs_mind_do(engine, GS_DO_SHOW_FAILURE);
    shown->job = job;
    shown->run = run;
    if (!job->committed) job->startup_failures++;
    bool has_advanced = run->step > run->step_before;
    if (has_advanced) job->num_restart_ages = 0;
    int recent = 0;
    gs_restart_decision decision = decide(engine, run, &recent);
    if (run->step > job->reached_step) job->reached_step = run->step;
    gs_complaints_keep(engine, run);
    gs_run_release(engine, run);
    if (decision.action == GS_RESTART_FAIL) {
        fail_job(engine, job, &decision, cause, recent);
        return;
    }
    note_restart(engine, job, has_advanced);
    gs_mind_count(engine, job, GS_COUNT_RESTART, cause->kind == GS_FAILURE_LOST ? "worker_lost" : "worker_error",
                  NULL, 0);
    int64_t now_ns = engine->state.now_ns;
    job->world_wanted = decision.action == GS_RESTART_SAME ? run->num_members : 0;
    job->failed_ns = now_ns;
    job->not_before_ns = now_ns + (int64_t)(decision.backoff_seconds * (double)GS_NS_PER_SEC);
    job->waiting_since_ms = engine->state.wall_ms;
    job->waiting_since_ns = now_ns;
    gs_job_move(engine, job, job->committed ? GS_JOB_RECOVERING : GS_JOB_STARTING, cause->reason,
                "%s; restart %lld %s", cause->message, (long long)job->restarts,
                decision.backoff_seconds > 0 ? "after a pause" : "at once");
}

// Its ranks were not asked to by us: a worker that is shut down takes its own away, and all of them save first; or
// nobody was there to direct them.
static bool have_left(const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        gs_bye_reason said = run->members[i].bye.reason;
        if (said != GS_BYE_DRAINED && said != GS_BYE_ORPHANED) return false;
    }
    return !run->cause.set;
}

// No failure, and no part of the budget for those.
static void end_left(gs_engine *engine, gs_run *run) {
    gs_job *job = run->job;
    bool orphaned = run->members[0].bye.reason == GS_BYE_ORPHANED;
    if (run->step > job->reached_step) job->reached_step = run->step;
    job->world_wanted = job->spec.restart.on_worker_lost == GS_ON_RESTART ? run->num_members : 0;
    job->waiting_since_ms = engine->state.wall_ms;
    job->waiting_since_ns = engine->state.now_ns;
    gs_run_release(engine, run);
    gs_job_move(engine, job, job->committed ? GS_JOB_RECOVERING : GS_JOB_STARTING,
                orphaned ? "RanksOrphaned" : "WorkerLeft",
                orphaned ? "no coordinator was there: the ranks saved and stopped at step %lld"
                         : "a worker shuts down: the ranks saved and stopped at step %lld",
                (long long)run->step);
}

// Its job is over with it, and nobody starts again from what it leaves.
static bool ends_for_good(const gs_engine *engine, gs_run *run) {
    if (run->job->stop_asked || gs_run_all_said(run, GS_BYE_TARGET_REACHED) || gs_run_all_said(run, GS_BYE_DATA_ENDED)) return true;
    if (have_left(run)) return false;
    int recent;
    complete_cause(engine, run);
    return decide(engine, run, &recent).action == GS_RESTART_FAIL;
}

// A disk that is away keeps no job from its end: what it has is found when it is back, before the next start. What a job leaves is
// read before it has ended, for as long as a disk may take to answer; a job that starts again waits for nobody who reads.
static bool is_over(const gs_engine *engine, gs_run *run) {
    const gs_checkpoints *checkpoints = &run->job->checkpoints;
    if (!gs_run_all_exited(run)) return false;
    if (checkpoints->away_since_ns) return true;
    if (gs_checkpoints_pending(checkpoints)) return false;
    if (!gs_checkpoints_being_read(checkpoints, engine->state.now_ns - engine->state.timing.disk_away_ns)) return true;
    return !ends_for_good(engine, run);
}

// What they say of its ranks later counts more than what others do.
static void note_workers(gs_job *job, const gs_run *run) {
    gs_job_forget_workers(job);
    for (int i = 0; i < run->num_members; i++) gs_job_note_worker(job, run->members[i].worker);
}

static void end_run(gs_engine *engine, gs_run *run) {
    gs_job *job = run->job;
    note_workers(job, run);
    gs_effect *ended = gs_mind_do(engine, GS_DO_END_RUN);
    ended->job = job;
    ended->run = run;
    engine->state.schedule_needed = true;
    gs_part_saves_end_run(engine, job);
    if (!gs_run_has_begun(run)) gs_checkpoints_leave_none(job);
    bool reached = gs_run_all_said(run, GS_BYE_TARGET_REACHED);
    bool data_ended = gs_run_all_said(run, GS_BYE_DATA_ENDED);
    if (!job->stop_asked && have_left(run)) {
        end_left(engine, run);
        return;
    }
    if (!reached && !data_ended && !job->stop_asked) {
        end_failed(engine, run);
        return;
    }
    long long step = job->step;
    gs_run_release(engine, run);
    if (reached) {
        gs_job_end(engine, job, GS_JOB_SUCCEEDED, "TargetReached", "%lld steps are done", step);
    } else if (data_ended) {
        gs_job_end(engine, job, GS_JOB_SUCCEEDED, "DataEnded", "a rank has no data left after %lld steps", step);
    } else {
        gs_job_end(engine, job, job->stop_outcome, job->stop_reason, "stopped at step %lld", step);
    }
}

void gs_runs_end_finished(gs_engine *engine) {
    for (size_t i = 0; i < engine->state.jobs.count; i++) {
        gs_run *run = engine->state.jobs.items[i]->run;
        if (run && is_over(engine, run)) end_run(engine, run);
    }
}
