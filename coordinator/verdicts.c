#include "coordinator/verdicts.h"

#include <string.h>

#include "coordinator/agents.h"
#include "coordinator/events.h"
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

// Kills who is left; whose agent is there and does not hold it has ended.
static void end_stragglers(gs_coordinator *coordinator, gs_run *run) {
    int killed = 0;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        const gs_agent *agent = gs_agents_find(coordinator, member->worker);
        if (member->exited || !agent || !agent->stream) continue;  // out of reach: leave_behind
        killed++;
        gs_agent_stop_rank(coordinator, member, true, 0);
        if (!gs_agent_holds(agent, member)) gs_member_exited(coordinator, member, -1, 0, NULL);
    }
    if (killed) gs_log_warn("stragglers killed", "job=%s ranks=%d", run->job->id_text, killed);
    gs_run_enter(run, GS_RUN_ENDING, coordinator->timing.leave_ns);
}

// A connection that its peer closed, and a neighbour that saw the rank die: nobody needs to wait for the
// report of an agent that may be gone too.
static void note_certain_death(gs_coordinator *coordinator, gs_run *run) {
    if (run->phase < GS_RUN_SETTLING || !run->cause.set || run->cause.member < 0) return;
    gs_member *member = &run->members[run->cause.member];
    const gs_agent *agent = gs_agents_find(coordinator, member->worker);
    if (member->exited || !member->stream_closed || (agent && agent->stream)) return;
    gs_member_exited(coordinator, member, -1, 0, NULL);
}

// Who is out of reach may still train, and is not waited for once it can do no harm: when another rank has left its
// generation, or when it has stopped by itself because nobody was heard for so long.
static void leave_behind(gs_coordinator *coordinator, gs_run *run, int64_t now_ns) {
    if (run->phase < GS_RUN_ENDING) return;
    bool orphaned = now_ns - gs_run_heard_ns(run) >= coordinator->timing.orphan_ns;
    if (!orphaned && !gs_run_is_broken(run)) return;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        const gs_agent *agent = gs_agents_find(coordinator, member->worker);
        if (member->exited || member->stream || (agent && agent->stream)) continue;
        int64_t lost_ns = agent && agent->lost_ns > run->phase_since_ns ? agent->lost_ns : run->phase_since_ns;
        if (now_ns - lost_ns < coordinator->timing.agent_dead_ns) continue;
        run->has_left_behind = true;
        gs_log_warn("trainer left behind", "job=%s rank=%d worker=%s generation=%u", run->job->id_text,
                    gs_member_rank_hint(member), member->worker, run->generation);
        gs_member_exited(coordinator, member, -1, 0, NULL);
    }
}

// Those who have come back show whether their steps advance, and so of the others whether they live. Of nobody there
// is nothing to be said: it may be us who cannot be reached.
static void go_on_without_all(gs_coordinator *coordinator, gs_run *run, int64_t now_ns) {
    int back = 0;
    for (int i = 0; i < run->num_members; i++) back += run->members[i].stream != NULL;
    if (back == 0 && now_ns - run->phase_since_ns >= coordinator->timing.orphan_ns) {
        blame_late(coordinator, run);
        return;
    }
    if (back == 0) {
        run->phase_deadline_ns = now_ns + coordinator->timing.grace_ns;
        return;
    }
    gs_run_enter(run, GS_RUN_TRAINING, 0);
    run->progress_ns = now_ns;
    run->was_reloaded = true;
    for (int i = 0; i < run->num_members; i++) run->members[i].heard_ns = now_ns;
    gs_event_add(coordinator, run->job, NULL, GS_SEVERITY_WARNING, "MembersCheckedIn",
                 "%d of %d ranks of generation %u are back after the coordinator was away; their steps will tell "
                 "of the others",
                 back, run->num_members, run->generation);
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
    case GS_RUN_RELOADING: go_on_without_all(coordinator, run, now_ns); break;
    default: blame_late(coordinator, run); break;
    }
}

static bool is_leaving(const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].said_bye || run->members[i].exited) return true;
    }
    return run->step >= run->job->spec.steps.target;
}

static bool is_busy(const gs_member *member) {
    return !strcmp(member->phase, "evaluate") || !strcmp(member->phase, "checkpoint");
}

// How long a rank may be silent before the next step of the others would have shown that it lives.
static int64_t patience_with(const gs_coordinator *coordinator, const gs_run *run, const gs_member *member) {
    int64_t longest_ns = (int64_t)(run->longest_step_seconds * (double)GS_NS_PER_SEC);
    int64_t dead_ns = coordinator->timing.dead_ns;
    if (dead_ns < BEATS_TO_DEATH * member->heartbeat_ns) dead_ns = BEATS_TO_DEATH * member->heartbeat_ns;
    if (dead_ns < 3 * longest_ns) dead_ns = 3 * longest_ns;
    for (int i = 0; i < run->num_members; i++)
        if (is_busy(&run->members[i])) return 10 * dead_ns;
    return dead_ns;
}

// Its host is silent, too.
static bool is_out_of_reach(gs_coordinator *coordinator, const gs_member *member, int64_t now_ns) {
    const gs_agent *agent = gs_agents_find(coordinator, member->worker);
    int64_t dead_ns = coordinator->timing.dead_ns;
    if (dead_ns < BEATS_TO_DEATH * member->heartbeat_ns) dead_ns = BEATS_TO_DEATH * member->heartbeat_ns;
    return !agent || !agent->stream || now_ns - agent->heard_ns >= dead_ns / 2;
}

typedef struct silence {
    int awaited, out_of_reach;
    gs_member *first;  // of those who are silent
    int64_t first_ns;  // of its last sign
} silence;

static silence look_for_silence(gs_coordinator *coordinator, gs_run *run, int64_t now_ns) {
    silence found = {0};
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!member->said_hello || member->exited || member->said_bye) continue;
        found.awaited++;
        int64_t sign_ns = member->heard_ns;
        // A step that is newer than its last word cannot have been made without it.
        if (run->step > member->heard_at_step && run->progress_ns > sign_ns) sign_ns = run->progress_ns;
        if (now_ns - sign_ns < patience_with(coordinator, run, member)) continue;
        found.out_of_reach += is_out_of_reach(coordinator, member, now_ns);
        if (found.first) continue;
        found.first = member;
        found.first_ns = sign_ns;
    }
    return found;
}

// Most of them are out of reach at once: that is our own trouble, and they train on. Verdicts wait for a word, until the ranks
// would have stopped by themselves.
static bool is_our_trouble(gs_coordinator *coordinator, gs_run *run, const silence *found, int64_t now_ns) {
    bool most = 2 * found->out_of_reach > found->awaited;
    if (most && now_ns - found->first_ns >= coordinator->timing.orphan_ns) return false;
    bool was_unheard = run->unheard;
    if (was_unheard != most)
        gs_log_warn(most ? "most ranks are silent: nobody is judged" : "ranks are heard again",
                    "job=%s generation=%u silent=%d ranks=%d", run->job->id_text, run->generation,
                    found->out_of_reach, run->num_members);
    run->unheard = most;
    if (!was_unheard || most) return most;
    // Nobody could tell of the time that has passed: it begins anew.
    run->progress_ns = now_ns;
    for (int i = 0; i < run->num_members; i++) run->members[i].heard_ns = now_ns;
    return true;
}

static void check_silence(gs_coordinator *coordinator, gs_run *run, int64_t now_ns) {
    const silence found = look_for_silence(coordinator, run, now_ns);
    if (is_our_trouble(coordinator, run, &found, now_ns) || !found.first) return;
    int rank = gs_member_rank_hint(found.first);
    gs_blame blame = {.kind = GS_FAILURE_LOST, .member = found.first, .reason = "WorkerSilent",
                      .class = "infrastructure", .evict = true,
                      .fault = GS_FAULT_TIMEOUT};
    gs_run_fail(coordinator, run, &blame,
                "rank %d on %s: no heartbeat and no step for %lld ms", rank, found.first->host,
                (long long)((now_ns - found.first_ns) / GS_NS_PER_MS));
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
        if (is_busy(member) && now_ns - run->progress_ns < 10 * patience_ns) return;
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
        leave_behind(coordinator, job->run, now_ns);
        check_phase_deadline(coordinator, job->run, now_ns);
        if (job->run->phase < GS_RUN_RELOADING) check_silence(coordinator, job->run, now_ns);
        if (job->run->phase == GS_RUN_TRAINING && !job->run->unheard) check_progress(coordinator, job->run, now_ns);
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
