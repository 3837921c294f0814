#include "coordinator/run_end.h"

#include <stdio.h>
#include <string.h>

#include "coordinator/checkpoints.h"
#include "coordinator/events.h"
#include "coordinator/job_control.h"
#include "coordinator/job_view.h"
#include "coordinator/metric_families.h"
#include "core/clock.h"

static bool is_over(const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (!run->members[i].exited) return false;
    }
    return !gs_checkpoints_pending(run->job);
}

static bool all_said(const gs_run *run, const char *reason) {
    for (int i = 0; i < run->num_members; i++) {
        if (strcmp(run->members[i].bye_reason, reason) != 0) return false;
    }
    return true;
}

static bool is_error_code(int exit_code) {
    return exit_code > 0 && exit_code != 75 && exit_code != 76;
}

// The first that ended by itself, when nobody else named a culprit.
static int find_culprit(const gs_run *run) {
    int first = -1;
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        bool own_doing = (member->signal && !member->kill_sent) || is_error_code(member->exit_code) ||
                         !strcmp(member->bye_reason, "error");
        if (own_doing && (first < 0 || member->exited_ns < run->members[first].exited_ns)) first = i;
    }
    return first;
}

static void complete_cause(gs_run *run) {
    gs_run_cause *cause = &run->cause;
    if (cause->member < 0) cause->member = find_culprit(run);
    if (!cause->set) {
        cause->set = true;
        cause->at_ms = gs_wall_ms();
        cause->step = run->step;
        cause->fault = gs_fault_facts_of(GS_FAULT_PEER_LOST, cause->member);
        snprintf(cause->reason, sizeof cause->reason, "WorkerLost");
        snprintf(cause->message, sizeof cause->message, "the ranks ended before the target");
    }
    if (cause->member < 0) return;
    // What the culprit itself left behind says more than what others saw of its end.
    const gs_member *culprit = &run->members[cause->member];
    bool spoke = !strcmp(culprit->bye_reason, "error");
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
    if (spoke && culprit->bye_error[0]) {
        snprintf(cause->message, sizeof cause->message, "rank %d: %.200s", cause->member,
                 culprit->bye_error);
        if (!cause->hint[0]) snprintf(cause->hint, sizeof cause->hint, "%s", culprit->bye_hint);
        if (culprit->bye_class[0]) {
            snprintf(cause->class, sizeof cause->class, "%s", culprit->bye_class);
        }
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

static const char *class_of(const gs_run_cause *cause, int exit_code) {
    if (cause->class[0]) return cause->class;
    if (cause->kind == GS_FAILURE_LOST) return "infrastructure";
    return exit_code == 70 || exit_code == 71 ? "system" : "user";
}

static gs_json *failure_of(const gs_run *run) {
    const gs_run_cause *cause = &run->cause;
    const gs_member *culprit = cause->member >= 0 ? &run->members[cause->member] : NULL;
    gs_json *first = gs_json_new_object();
    gs_json *tail = NULL;
    if (culprit) {
        gs_json_set_int(first, "rank", cause->member);
        gs_json_set_string(first, "worker", culprit->worker);
        gs_json_set_string(first, "host", culprit->host);
        if (culprit->signal) gs_json_set_int(first, "signal", culprit->signal);
        else if (culprit->exit_code >= 0) gs_json_set_int(first, "exit_code", culprit->exit_code);
        if (culprit->log_tail) tail = gs_json_retain(culprit->log_tail);
    }
    gs_json_set_int(first, "generation", run->generation);
    // What it said on leaving is newer than what was known when the failure was noticed.
    bool said_more = culprit && culprit->applied_step > cause->step;
    gs_json_set_int(first, "step", said_more ? culprit->applied_step : cause->step);
    gs_json_set_time(first, "at", cause->at_ms);
    gs_fault_facts_write(first, &cause->fault);
    gs_json *consequences = gs_json_new_array();
    for (int i = 0; i < run->num_members; i++) {
        if (i == cause->member) continue;
        gs_json *entry = gs_json_new_object();
        gs_json_set_int(entry, "rank", i);
        gs_json_set_string(entry, "reason",
                           run->members[i].comm_up ? "CommunicatorAborted" : "GenerationAborted");
        gs_json_push(consequences, entry);
    }
    gs_json *failure = gs_json_new_object();
    gs_json_set_string(failure, "class", class_of(cause, culprit ? culprit->exit_code : -1));
    gs_json_set_string(failure, "message", cause->message);
    gs_json_set(failure, "first", first);
    gs_json_set(failure, "log_tail", tail ? tail : gs_json_new_array());
    gs_json_set(failure, "consequences", consequences);
    if (cause->hint[0]) gs_json_set_string(failure, "hint", cause->hint);
    return failure;
}

static int count_recent_restarts(gs_job *job) {
    int64_t since_ms = gs_wall_ms() - (int64_t)(job->spec.restart.window_seconds * 1000);
    int kept = 0;
    for (int i = 0; i < job->num_restart_times; i++) {
        if (job->restart_times_ms[i] >= since_ms) {
            job->restart_times_ms[kept++] = job->restart_times_ms[i];
        }
    }
    job->num_restart_times = kept;
    return kept;
}

// A restart of a job that came further than ever before is no part of the budget: what ends it is going nowhere.
static void note_restart(gs_job *job, bool has_advanced) {
    job->restarts++;
    if (has_advanced) {
        job->num_restart_times = 0;
        return;
    }
    if (job->num_restart_times == GS_JOB_MAX_RESTART_TIMES) {
        memmove(job->restart_times_ms, job->restart_times_ms + 1,
                (GS_JOB_MAX_RESTART_TIMES - 1) * sizeof job->restart_times_ms[0]);
        job->num_restart_times--;
    }
    job->restart_times_ms[job->num_restart_times++] = gs_wall_ms();
}

static void end_failed(gs_coordinator *coordinator, gs_run *run) {
    gs_job *job = run->job;
    complete_cause(run);
    const gs_run_cause cause = run->cause;
    const gs_member *culprit = cause.member >= 0 ? &run->members[cause.member] : NULL;
    gs_json_release(job->failure);
    job->failure = failure_of(run);
    if (!job->committed) job->startup_failures++;
    bool has_advanced = run->step > run->step_before;
    if (has_advanced) job->num_restart_times = 0;
    gs_restart_facts facts = {.kind = cause.kind,
                              .exit_code = culprit && !culprit->kill_sent ? culprit->exit_code : -1,
                              .committed = job->committed,
                              .startup_failures = job->startup_failures,
                              .restarts_in_window = count_recent_restarts(job)};
    gs_restart_decision decision = gs_restart_decide(&job->spec, &facts);
    if (run->no_restart && decision.action != GS_RESTART_FAIL) {
        decision = (gs_restart_decision){.action = GS_RESTART_FAIL, .reason = cause.reason};
    }
    int ranks = run->num_members;
    if (run->step > job->reached_step) job->reached_step = run->step;
    if (run->has_left_behind) gs_part_saves_adopt(coordinator, job);
    gs_run_destroy(run);
    job->run = NULL;
    if (decision.action == GS_RESTART_FAIL) {
        if (decision.exhausted) {
            gs_job_end(coordinator, job, GS_JOB_FAILED, decision.reason,
                       "%d restarts within %g s; the last: %s", facts.restarts_in_window,
                       job->spec.restart.window_seconds, cause.message);
        } else {
            // Mismatches have names of their own.
            gs_job_end(coordinator, job, GS_JOB_FAILED, cause.reason, "%s", cause.message);
        }
        return;
    }
    note_restart(job, has_advanced);
    gs_metrics_count_restart(coordinator, job,
                             cause.kind == GS_FAILURE_LOST ? "worker_lost" : "worker_error");
    job->world_wanted = decision.action == GS_RESTART_SAME ? ranks : 0;
    job->failed_ns = gs_now_ns();
    job->not_before_ns = gs_now_ns() + (int64_t)(decision.backoff_seconds * (double)GS_NS_PER_SEC);
    job->waiting_since_ms = gs_wall_ms();
    gs_job_move(coordinator, job, job->committed ? GS_JOB_RECOVERING : GS_JOB_STARTING, cause.reason,
                "%s; restart %lld %s", cause.message, (long long)job->restarts,
                decision.backoff_seconds > 0 ? "after a pause" : "at once");
}

// Its ranks were not asked to by us: a worker that is shut down takes its own away, and all of them save first; or
// nobody was there to direct them.
static bool have_left(const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        const char *reason = run->members[i].bye_reason;
        if (strcmp(reason, "drained") != 0 && strcmp(reason, "orphaned") != 0) return false;
    }
    return !run->cause.set;
}

// No failure, and no part of the budget for those.
static void end_left(gs_coordinator *coordinator, gs_run *run) {
    gs_job *job = run->job;
    bool orphaned = !strcmp(run->members[0].bye_reason, "orphaned");
    if (run->step > job->reached_step) job->reached_step = run->step;
    job->world_wanted = job->spec.restart.on_worker_lost == GS_ON_RESTART ? run->num_members : 0;
    job->waiting_since_ms = gs_wall_ms();
    long long step = run->step;
    gs_run_destroy(run);
    job->run = NULL;
    gs_job_move(coordinator, job, job->committed ? GS_JOB_RECOVERING : GS_JOB_STARTING,
                orphaned ? "RanksOrphaned" : "WorkerLeft",
                orphaned ? "no coordinator was there: the ranks saved and stopped at step %lld"
                         : "a worker shuts down: the ranks saved and stopped at step %lld",
                step);
}

static void end_run(gs_coordinator *coordinator, gs_run *run) {
    gs_job *job = run->job;
    gs_json_release(job->final_runs);
    job->final_runs = gs_job_members_to_view(job);
    coordinator->schedule_needed = true;
    gs_part_saves_end_run(coordinator, job);
    bool reached = all_said(run, "target_reached"), data_ended = all_said(run, "data_ended");
    if (!job->stop_asked && have_left(run)) {
        end_left(coordinator, run);
        return;
    }
    if (!reached && !data_ended && !job->stop_asked) {
        end_failed(coordinator, run);
        return;
    }
    long long step = job->step;
    gs_run_destroy(run);
    job->run = NULL;
    if (reached) {
        gs_job_end(coordinator, job, GS_JOB_SUCCEEDED, "TargetReached", "%lld steps are done", step);
    } else if (data_ended) {
        gs_job_end(coordinator, job, GS_JOB_SUCCEEDED, "DataEnded",
                   "a rank has no data left after %lld steps", step);
    } else {
        gs_job_end(coordinator, job, job->stop_outcome, job->stop_reason, "stopped at step %lld", step);
    }
}

void gs_runs_end_finished(gs_coordinator *coordinator) {
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        gs_run *run = coordinator->jobs[i]->run;
        if (run && is_over(run)) end_run(coordinator, run);
    }
}
