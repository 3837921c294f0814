#include "coordinator/verdicts.h"

#include <string.h>

#include "coordinator/agents.h"
#include "coordinator/job_control.h"
#include "coordinator/membership.h"
#include "core/clock.h"
#include "core/log.h"

#define FIRST_STEPS 20
#define BEATS_TO_DEATH 15  // where heartbeats are stretched
#define BYE_NS GS_NS_PER_SEC

static bool is_late(const gs_run *run, const gs_member *member) {
    switch (run->phase) {
    case GS_RUN_LAUNCHING: return !member->said_hello || (member->list_asked && !member->params);
    case GS_RUN_PREPARING: return !member->ready;
    case GS_RUN_CONNECTING: return !member->comm_up;
    case GS_RUN_RELOADING: return !member->stream;
    default: return false;
    }
}

static void blame_late(gs_coordinator *coordinator, gs_run *run) {
    static const char *const awaited[] = {"say hello", "answer prepare", "join the communicator", "",
                                          "come back after the coordinator's restart"};
    gs_member *late = NULL;
    for (int i = 0; i < run->num_members && !late; i++) {
        if (is_late(run, &run->members[i])) late = &run->members[i];
    }
    gs_blame blame = {.kind = GS_FAILURE_LOST, .member = late, .reason = "WorkerLate",
                      .class = "infrastructure", .evict = true,
                      .fault = GS_FAULT_TIMEOUT};
    int64_t waited_ms = (gs_now_ns() - run->phase_since_ns) / GS_NS_PER_MS;
    if (late) {
        gs_run_fail(coordinator, run, &blame, "rank %d (worker %s slot %d) did not %s within %lld ms",
                    (int)(late - run->members), late->worker, late->slot, awaited[run->phase],
                    (long long)waited_ms);
    } else {
        gs_run_fail(coordinator, run, &blame, "%s took longer than %lld ms",
                    gs_run_phase_name(run->phase), (long long)waited_ms);
    }
}

// Kills who is left; whose agent is gone, or does not hold it, cannot even be killed and counts as gone.
static void end_stragglers(gs_coordinator *coordinator, gs_run *run) {
    int killed = 0;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (member->exited) continue;
        killed++;
        gs_agent_stop_rank(coordinator, member, true, 0);
        const gs_agent *agent = gs_agents_find(coordinator, member->worker);
        bool runs = agent && (!agent->stream || gs_agent_holds(agent, member));
        if (runs) continue;
        gs_member_exited(coordinator, member, -1, 0, NULL);
    }
    gs_log_warn("stragglers killed", "job=%s ranks=%d", run->job->id_text, killed);
    gs_run_enter(run, GS_RUN_ENDING, coordinator->timing.leave_ns);
}

// A connection that its peer closed, and a neighbour that saw the rank die: nobody needs to wait for the
// report of an agent that may be gone too.
static void note_certain_death(gs_coordinator *coordinator, gs_run *run) {
    if (run->phase < GS_RUN_SETTLING || !run->cause.set || run->cause.member < 0) return;
    gs_member *member = &run->members[run->cause.member];
    const gs_agent *agent = gs_agents_find(coordinator, member->worker);
    if (member->exited || member->stream || !member->said_hello || (agent && agent->stream)) return;
    gs_member_exited(coordinator, member, -1, 0, NULL);
}

// A trainer that said Bye of a generation that failed is given a moment to end by itself.
static void end_lingering(gs_coordinator *coordinator, gs_run *run, int64_t now_ns) {
    if (run->phase < GS_RUN_SETTLING) return;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!member->said_bye || member->exited || member->kill_sent) continue;
        if (now_ns - member->bye_ns >= BYE_NS) gs_agent_stop_rank(coordinator, member, true, 0);
    }
}

static void check_phase_deadline(gs_coordinator *coordinator, gs_run *run, int64_t now_ns) {
    if (!run->phase_deadline_ns || now_ns < run->phase_deadline_ns) return;
    switch (run->phase) {
    case GS_RUN_SETTLING: gs_run_settle_now(coordinator, run); break;
    case GS_RUN_ENDING: end_stragglers(coordinator, run); break;
    case GS_RUN_TRAINING: gs_run_kill(coordinator, run, 0); break;  // the drain took too long
    default: blame_late(coordinator, run); break;
    }
}

static bool is_leaving(const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].said_bye || run->members[i].exited) return true;
    }
    return run->step >= run->job->spec.steps.target;
}

static void check_silence(gs_coordinator *coordinator, gs_run *run, int64_t now_ns) {
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!member->said_hello || member->exited || member->said_bye) continue;
        int64_t sign_ns = member->heard_ns;
        // A step that is newer than its last word cannot have been made without it.
        if (run->step > member->heard_at_step && run->progress_ns > sign_ns) sign_ns = run->progress_ns;
        int64_t dead_ns = coordinator->timing.dead_ns;
        if (dead_ns < BEATS_TO_DEATH * member->heartbeat_ns) dead_ns = BEATS_TO_DEATH * member->heartbeat_ns;
        if (now_ns - sign_ns < dead_ns) continue;
        gs_blame blame = {.kind = GS_FAILURE_LOST, .member = member, .reason = "WorkerSilent",
                          .class = "infrastructure", .evict = true,
                          .fault = GS_FAULT_TIMEOUT};
        gs_run_fail(coordinator, run, &blame,
                    "rank %d on %s: no heartbeat and no step for %lld ms", i, member->host,
                    (long long)((now_ns - sign_ns) / GS_NS_PER_MS));
        return;
    }
}

static bool waits_for_others(const gs_member *member) {
    return !strcmp(member->phase, "reduce") || !strcmp(member->phase, "commit");
}

// The ranks' own deadlines in a collective come first and name the culprit; this is for what they miss.
static void check_progress(gs_coordinator *coordinator, gs_run *run, int64_t now_ns) {
    int64_t patience_ns = run->step - run->base_step < FIRST_STEPS ? coordinator->timing.hang_first_ns
                                                                   : coordinator->timing.hang_least_ns;
    int64_t longest_ns = (int64_t)(run->longest_step_seconds * (double)GS_NS_PER_SEC);
    int64_t timeout_ns = (int64_t)(run->job->spec.reducer.timeout_seconds * (double)GS_NS_PER_SEC);
    if (patience_ns < 10 * longest_ns) patience_ns = 10 * longest_ns;
    if (patience_ns < 2 * timeout_ns) patience_ns = 2 * timeout_ns;
    if (now_ns - run->progress_ns < patience_ns || is_leaving(run)) return;
    int waiting = 0;
    gs_member *culprit = NULL;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        bool busy = !strcmp(member->phase, "evaluate") || !strcmp(member->phase, "checkpoint");
        if (busy && now_ns - run->progress_ns < 10 * patience_ns) return;
        if (waits_for_others(member)) waiting++;
        else if (!culprit) culprit = member;
    }
    if (waiting == 0 && run->num_members > 1) culprit = NULL;
    gs_blame blame = {.kind = GS_FAILURE_LOST, .member = culprit, .reason = "WorkerHung",
                      .class = "infrastructure", .evict = true,
                      .fault = GS_FAULT_TIMEOUT};
    gs_run_fail(coordinator, run, &blame, "no step for %lld ms after step %lld; %s %d is in %s",
                (long long)((now_ns - run->progress_ns) / GS_NS_PER_MS), (long long)run->step,
                culprit ? "rank" : "nobody to blame, rank", culprit ? culprit->rank : 0,
                culprit ? culprit->phase : run->members[0].phase);
}

static void check_job_deadline(gs_coordinator *coordinator, gs_job *job) {
    double seconds = job->spec.steps.deadline_seconds;
    if (seconds <= 0 || job->stop_asked || gs_job_state_terminal(job->state)) return;
    if ((double)(gs_wall_ms() - job->created_ms) / 1000 < seconds) return;
    gs_job_stop(coordinator, job, false, GS_JOB_FAILED, "DeadlineExceeded",
                (double)coordinator->timing.drain_ns / GS_NS_PER_SEC);
}

void gs_verdicts_tick(gs_coordinator *coordinator) {
    int64_t now_ns = gs_now_ns();
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        gs_job *job = coordinator->jobs[i];
        check_job_deadline(coordinator, job);
        if (!job->run) continue;
        note_certain_death(coordinator, job->run);
        end_lingering(coordinator, job->run, now_ns);
        check_phase_deadline(coordinator, job->run, now_ns);
        if (job->run->phase < GS_RUN_RELOADING) check_silence(coordinator, job->run, now_ns);
        if (job->run->phase == GS_RUN_TRAINING) check_progress(coordinator, job->run, now_ns);
    }
}

static int64_t later(int64_t at_ns, int64_t skipped_ns, int64_t now_ns) {
    return at_ns + skipped_ns < now_ns ? at_ns + skipped_ns : now_ns;
}

static void skip_in_run(gs_run *run, int64_t skipped_ns, int64_t age_skipped_ns, int64_t now_ns) {
    run->progress_ns = later(run->progress_ns, age_skipped_ns, now_ns);
    run->phase_since_ns = later(run->phase_since_ns, skipped_ns, now_ns);
    if (run->phase_deadline_ns) run->phase_deadline_ns += skipped_ns;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        member->heard_ns = later(member->heard_ns, age_skipped_ns, now_ns);
        if (member->said_bye) member->bye_ns = later(member->bye_ns, skipped_ns, now_ns);
    }
}

void gs_verdicts_skip_time(gs_coordinator *coordinator, int64_t skipped_ns) {
    int64_t now_ns = gs_now_ns();
    bool forget = skipped_ns > coordinator->timing.suspect_ns;
    int64_t age_skipped_ns = forget ? now_ns : skipped_ns;
    for (size_t i = 0; i < coordinator->num_jobs; i++) {
        gs_run *run = coordinator->jobs[i]->run;
        if (run) skip_in_run(run, skipped_ns, age_skipped_ns, now_ns);
    }
    for (size_t i = 0; i < coordinator->num_agents; i++) {
        gs_agent *agent = coordinator->agents[i];
        agent->heard_ns = later(agent->heard_ns, age_skipped_ns, now_ns);
        if (!agent->stream) agent->lost_ns = later(agent->lost_ns, age_skipped_ns, now_ns);
    }
}
