#include "coordinator/engine/deadlines.h"

#include "coordinator/engine/adoption.h"
#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/base/orders.h"
#include "coordinator/engine/runs/claims.h"
#include "coordinator/engine/runs/run_life.h"
#include "coordinator/engine/stops.h"
#include "core/clock.h"

#define FIRST_STEPS 20
#define TELLS_TO_HANG 3   // of the longest time between two words of a rank
#define BYE_NS GS_NS_PER_SEC
#define LONG_WORK_TIMES 10  // of the patience with a step
#define LAST_SAVE_TIMES 3   // of the time for one

// It was told to go and says all the while that it hasn't begun: of one that was adopted it is not always known that it can.
static bool does_not_begin(const gs_engine *engine, const gs_member *member) {
    return member->idle_since_ns && member->idle_told_ns - member->idle_since_ns >= engine->state.timing.connect_ns;
}

// Who says Bye before its communicator is up keeps the others waiting for as long as it lasts.
static bool leaves_too_soon(const gs_member *member) { return member->stage == GS_MEMBER_LEAVING && !member->was_up; }

static bool is_late(const gs_engine *engine, const gs_run *run, const gs_member *member) {
    switch (run->phase) {
    case GS_RUN_LAUNCHING: return member->stage == GS_MEMBER_LAUNCHED || (member->list_asked && !member->params);
    case GS_RUN_PREPARING: return member->stage < GS_MEMBER_READY || leaves_too_soon(member);
    case GS_RUN_CONNECTING: return member->stage < GS_MEMBER_UP || leaves_too_soon(member);
    case GS_RUN_TRAINING: return member->stage < GS_MEMBER_LEAVING && does_not_begin(engine, member);
    case GS_RUN_RELOADING: return !member->stream.call && member->stage < GS_MEMBER_LEAVING;
    default: return false;
    }
}

// It has given its bytes, and others have not: it is late because they are.
static bool waits_for_others(const gs_run *run, const gs_member *member) {
    for (const gs_exchange_round *round = run->exchanges; round; round = round->next) {
        for (int i = 0; i < round->num_ranks; i++) {
            if (round->ranks[i] == member->rank && round->entries[i].bytes) return true;
        }
    }
    return false;
}

// Of those who are late: one that is away, or else one that nobody keeps waiting.
static gs_member *find_late(const gs_engine *engine, gs_run *run) {
    gs_member *late = NULL, *idle = NULL;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!is_late(engine, run, member)) continue;
        if (!member->stream.call) return member;
        if (!late) late = member;
        if (!idle && !waits_for_others(run, member)) idle = member;
    }
    return idle ? idle : late;
}

static void blame_late(gs_engine *engine, gs_run *run) {
    static const char *const awaited[] = {"say hello", "answer prepare", "join the communicator", "begin to train",
                                          "come back after the coordinator's restart"};
    gs_member *late = find_late(engine, run);
    gs_blame blame = {.kind = GS_FAILURE_LOST, .member = late, .reason = "WorkerLate",
                      .class = "infrastructure", .evict = true, .fault = GS_FAULT_TIMEOUT};
    long long waited_ms = (engine->state.now_ns - run->phase_since_ns) / GS_NS_PER_MS;
    if (late) {
        gs_run_fail(engine, run, &blame, "rank %d (worker %s slot %d) did not %s within %lld ms",
                    gs_member_index(late), late->worker, late->slot, awaited[run->phase], waited_ms);
    } else {
        gs_run_fail(engine, run, &blame, "%s took longer than %lld ms", gs_run_phase_name(run->phase),
                    waited_ms);
    }
}

// Kills who is left; whose agent is there and does not hold it has ended.
static void end_stragglers(gs_engine *engine, gs_run *run) {
    int killed = 0;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        const gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
        if (member->stage == GS_MEMBER_EXITED || !agent || !gs_agent_is_connected(agent)) continue;  // leave_behind
        killed++;
        gs_order_stop_rank(engine, member, true, 0);
        if (!gs_agent_holds(agent, member)) gs_member_exited(engine, member, -1, 0, NULL);
    }
    if (killed)
        gs_mind_log(engine, GS_SEVERITY_WARNING, "stragglers killed", "job=%s ranks=%d", run->job->id_text, killed);
    gs_run_enter(engine, run, GS_RUN_ENDING, engine->state.timing.leave_ns);
}

// A connection that was closed, and a neighbour that saw the rank die and has left: nobody needs to wait for the
// report of an agent that may be gone too.
static void note_certain_death(gs_engine *engine, gs_run *run) {
    if (run->phase < GS_RUN_SETTLING || !run->cause.set || run->cause.member < 0 || !gs_run_is_broken(run)) return;
    gs_member *member = &run->members[run->cause.member];
    const gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
    if (member->stage == GS_MEMBER_EXITED || !member->stream_closed || (agent && gs_agent_is_connected(agent))) return;
    gs_member_exited(engine, member, -1, 0, NULL);
}

// How long nobody may be heard before all ranks have stopped by themselves: they count from when they noticed that they are
// alone, which is later than their last word here, and the step in which the limit passes is committed first.
static int64_t stopped_alone_after(const gs_engine *engine, const gs_run *run) {
    const gs_timing *timing = &engine->state.timing;
    return run->orphan_ns + timing->agent_dead_ns + (int64_t)(2 * run->longest_step_seconds * (double)GS_NS_PER_SEC);
}

// Who is out of reach may still train, and is not waited for once it can do no harm: when it has said Bye; when the
// run ends and another rank has left its generation, or it has stopped by itself because nobody was heard for so long.
static void leave_behind(gs_engine *engine, gs_run *run) {
    const gs_timing *timing = &engine->state.timing;
    int64_t now_ns = engine->state.now_ns;
    bool orphaned = now_ns - gs_run_heard_ns(run) >= stopped_alone_after(engine, run);
    bool all_may_go = run->phase >= GS_RUN_ENDING && (orphaned || gs_run_is_broken(run));
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (member->stage == GS_MEMBER_EXITED || member->stream.call) continue;
        const gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
        if (agent && gs_agent_is_connected(agent)) continue;
        bool has_left = member->stage == GS_MEMBER_LEAVING;
        if (!all_may_go && !has_left) continue;
        int64_t lost_ns = has_left ? member->bye.at_ns : run->phase_since_ns;
        if (agent && agent->lost_ns > lost_ns) lost_ns = agent->lost_ns;
        if (now_ns - lost_ns < timing->agent_dead_ns) continue;
        gs_mind_log(engine, GS_SEVERITY_WARNING, "trainer left behind", "job=%s rank=%d worker=%s generation=%u",
                    run->job->id_text, gs_member_index(member), member->worker, run->generation);
        gs_member_exited(engine, member, -1, 0, NULL);
    }
}

// Those who have come back show whether their steps advance, and so of the others whether they live. Of nobody there
// is nothing to be said: it may be us who cannot be reached.
static void go_on_without_all(gs_engine *engine, gs_run *run) {
    int64_t now_ns = engine->state.now_ns;
    int back = 0;
    for (int i = 0; i < run->num_members; i++)
        back += run->members[i].stream.call != 0 && run->members[i].stage < GS_MEMBER_LEAVING;
    if (back == 0 && now_ns - run->phase_since_ns >= run->orphan_ns) {
        blame_late(engine, run);
        return;
    }
    if (back == 0) {
        run->phase_deadline_ns = now_ns + engine->state.timing.grace_ns;
        return;
    }
    gs_run_enter(engine, run, GS_RUN_TRAINING, 0);
    run->progress_ns = now_ns;
    run->was_reloaded = true;
    for (int i = 0; i < run->num_members; i++) run->members[i].heard_ns = now_ns;
    gs_note_add(engine, run->job, NULL, GS_SEVERITY_WARNING, "MembersCheckedIn",
                "%d of %d ranks of generation %u are back after the coordinator was away; their steps will tell "
                "of the others",
                back, run->num_members, run->generation);
}

// A trainer that said Bye is given the time of a save to end by itself; a moment where its generation has failed.
static void end_lingering(gs_engine *engine, gs_run *run) {
    if (run->phase < GS_RUN_TRAINING || run->phase == GS_RUN_RELOADING) return;
    int64_t given_ns = run->phase < GS_RUN_SETTLING ? engine->state.timing.save_ns : BYE_NS;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (member->stage != GS_MEMBER_LEAVING || member->kill_sent || member->goodbye.call) continue;
        if (engine->state.now_ns - member->bye.at_ns >= given_ns) gs_order_stop_rank(engine, member, true, 0);
    }
}

static void check_phase(gs_engine *engine, gs_run *run) {
    int64_t now_ns = engine->state.now_ns;
    bool drained = run->drain_deadline_ns && now_ns >= run->drain_deadline_ns;
    if (drained && (run->phase == GS_RUN_TRAINING || run->phase == GS_RUN_RELOADING)) {
        gs_run_kill(engine, run, 0);
        return;
    }
    if (!run->phase_deadline_ns || now_ns < run->phase_deadline_ns) return;
    switch (run->phase) {
    case GS_RUN_SETTLING: gs_run_settle_now(engine, run); break;
    case GS_RUN_ENDING: end_stragglers(engine, run); break;
    case GS_RUN_RELOADING: go_on_without_all(engine, run); break;
    default: blame_late(engine, run); break;
    }
}

// Its steps are done: what comes is long work, evaluations and saves, and Byes.
static bool is_at_end(const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stage >= GS_MEMBER_LEAVING) return true;
    }
    return run->step >= run->job->spec.steps.target;
}

static bool works_long(const gs_run *run) {
    for (int i = 0; i < run->num_members; i++)
        if (run->members[i].activity == GS_ACTIVITY_LONG_WORK) return true;
    return false;
}

// How long a rank may be silent before the next step of the others would have shown that it lives.
static int64_t patience_with(const gs_engine *engine, const gs_run *run, const gs_member *member, bool is_long) {
    int64_t longest_ns = (int64_t)(run->longest_step_seconds * (double)GS_NS_PER_SEC);
    int64_t dead_ns = gs_state_dead_ns(&engine->state, member->heartbeat_ns);
    if (dead_ns < 3 * longest_ns) dead_ns = 3 * longest_ns;
    return is_long ? 10 * dead_ns : dead_ns;
}

// Its host is silent, too.
static bool is_out_of_reach(const gs_engine *engine, const gs_member *member) {
    const gs_agent *agent = gs_agent_table_find(&engine->state.agents, member->worker);
    return !agent || !gs_agent_is_connected(agent) ||
           engine->state.now_ns - agent->heard_ns >= gs_state_dead_ns(&engine->state, agent->heartbeat_ns) / 2;
}

typedef struct silent_rank {
    gs_member *member;  // NULL: none
    int64_t sign_ns;    // its last one
} silent_rank;

typedef struct silence {
    int awaited, out_of_reach, heard;
    silent_rank first, mute;  // of those who are silent; mute: whose worker is heard
} silence;

static void note_silent(silent_rank *rank, gs_member *member, int64_t sign_ns) {
    if (!rank->member) *rank = (silent_rank){member, sign_ns};
}

static int64_t last_sign_ns(const gs_run *run, const gs_member *member) {
    // A step that is newer than its last word cannot have been made without it.
    bool has_stepped = run->step > member->heard_at_step && run->progress_ns > member->heard_ns;
    return has_stepped ? run->progress_ns : member->heard_ns;
}

static silence look_for_silence(const gs_engine *engine, gs_run *run) {
    silence found = {0};
    bool is_long = works_long(run);
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!gs_member_is_here(member) || member->stage == GS_MEMBER_LEAVING) continue;
        found.awaited++;
        int64_t sign_ns = last_sign_ns(run, member), silent_ns = engine->state.now_ns - sign_ns;
        int64_t patience_ns = patience_with(engine, run, member, is_long);
        // Who fell silent with the first may be some milliseconds behind it.
        if (silent_ns < patience_ns / 2) {
            found.heard += member->stream.call != 0;
            continue;
        }
        bool is_away = is_out_of_reach(engine, member);
        found.out_of_reach += is_away;
        if (silent_ns < patience_ns) continue;
        note_silent(&found.first, member, sign_ns);
        if (!is_away) note_silent(&found.mute, member, sign_ns);
    }
    return found;
}

static bool are_most_away(const silence *found) { return 2 * found->out_of_reach > found->awaited; }

// Some are out of reach, and no other is there to tell of the steps that would show that they live.
static bool is_nobody_heard(const silence *found) { return found->out_of_reach > 0 && found->heard == 0; }

// Most of them are out of reach at once: that is our own trouble, and they train on. Verdicts wait for a word, until the
// ranks would have stopped by themselves. It is noted before anybody could be judged: when the trouble ends, one rank
// is heard a moment before the others. Fewer of them wait alone, while nobody is heard who could tell of them.
static bool is_our_trouble(gs_engine *engine, gs_run *run, const silence *found) {
    int64_t now_ns = engine->state.now_ns;
    bool most = are_most_away(found), unheard = most || is_nobody_heard(found);
    // Who fell silent first may go on for as long as another of them hears somebody.
    bool all = found->out_of_reach == found->awaited;
    int64_t last_ns = all ? gs_run_heard_ns(run) : found->first.sign_ns;
    if (most && found->first.member && now_ns - last_ns >= stopped_alone_after(engine, run)) return false;
    bool was_unheard = run->unheard;
    if (was_unheard != unheard)
        gs_mind_log(engine, GS_SEVERITY_WARNING,
                    most      ? "most ranks are silent: nobody is judged"
                    : unheard ? "nobody tells of ranks that are out of reach: they are not judged"
                              : "ranks are heard again",
                    "job=%s generation=%u silent=%d ranks=%d", run->job->id_text, run->generation,
                    found->out_of_reach, run->num_members);
    // Whose worker is back first is out of reach no more, and has not had the time to say a word.
    bool has_ended = (was_unheard && !unheard) || (run->most_away && !most);
    run->unheard = unheard;
    run->most_away = most;
    if (!has_ended) return most;
    // Nobody could tell of the time that has passed: it begins anew.
    run->progress_ns = now_ns;
    for (int i = 0; i < run->num_members; i++) run->members[i].heard_ns = now_ns;
    return true;
}

static void check_silence(gs_engine *engine, gs_run *run) {
    const silence found = look_for_silence(engine, run);
    if (is_our_trouble(engine, run, &found)) return;
    const silent_rank *silent = !are_most_away(&found) && is_nobody_heard(&found) ? &found.mute : &found.first;
    if (!silent->member) return;
    gs_blame blame = {.kind = GS_FAILURE_LOST, .member = silent->member, .reason = "WorkerSilent",
                      .class = "infrastructure", .evict = true, .fault = GS_FAULT_TIMEOUT};
    gs_run_fail(engine, run, &blame, "rank %d on %s: no heartbeat and no step for %lld ms",
                gs_member_index(silent->member), silent->member->host,
                (long long)((engine->state.now_ns - silent->sign_ns) / GS_NS_PER_MS));
}

// The longest that a rank which steps may tell nothing of it.
static int64_t longest_told_ns(const gs_run *run) {
    int64_t longest_ns = 0;
    for (int i = 0; i < run->num_members; i++) {
        const gs_cadence *told = &run->members[i].told;
        if (told->heartbeat_ns > longest_ns) longest_ns = told->heartbeat_ns;
        if (told->report_ns > longest_ns) longest_ns = told->report_ns;
    }
    return longest_ns;
}

static int64_t patience_of(const gs_engine *engine, const gs_run *run) {
    const gs_timing *timing = &engine->state.timing;
    int64_t patience_ns = run->step - run->base_step < FIRST_STEPS ? timing->hang_first_ns : timing->hang_least_ns;
    int64_t longest_ns = (int64_t)(run->longest_step_seconds * (double)GS_NS_PER_SEC);
    int64_t timeout_ns = (int64_t)(run->job->spec.reducer.timeout_seconds * (double)GS_NS_PER_SEC);
    if (patience_ns < 10 * longest_ns) patience_ns = 10 * longest_ns;
    if (patience_ns < 2 * timeout_ns) patience_ns = 2 * timeout_ns;
    if (patience_ns < TELLS_TO_HANG * longest_told_ns(run)) patience_ns = TELLS_TO_HANG * longest_told_ns(run);
    return patience_ns;
}

static void blame_hung(gs_engine *engine, gs_run *run, gs_member *culprit, int64_t still_ns) {
    gs_blame blame = {.kind = GS_FAILURE_LOST, .member = culprit, .reason = "WorkerHung",
                      .class = "infrastructure", .evict = true, .fault = GS_FAULT_TIMEOUT};
    gs_run_fail(engine, run, &blame, "no step for %lld ms after step %lld; %s %d is in %s",
                (long long)(still_ns / GS_NS_PER_MS), (long long)run->step,
                culprit ? "rank" : "nobody to blame, rank", culprit ? culprit->rank : 0,
                culprit ? culprit->phase : run->members[0].phase);
}

// Nobody trains any more, and somebody does not leave either. Who saves has a deadline of its own for that, which comes first.
static void check_end(gs_engine *engine, gs_run *run) {
    int64_t since_ns = run->progress_ns, patience_ns = LONG_WORK_TIMES * patience_of(engine, run);
    bool is_long_work = false;
    gs_member *culprit = NULL;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (member->bye.reason && member->bye.at_ns > since_ns) since_ns = member->bye.at_ns;
        if (member->stage >= GS_MEMBER_LEAVING) continue;
        is_long_work |= member->activity == GS_ACTIVITY_LONG_WORK;
        if (!culprit || (culprit->activity == GS_ACTIVITY_WAITS && member->activity != GS_ACTIVITY_WAITS)) culprit = member;
    }
    int64_t save_ns = LAST_SAVE_TIMES * engine->state.timing.save_ns, still_ns = engine->state.now_ns - since_ns;
    if (is_long_work && patience_ns < save_ns) patience_ns = save_ns;
    if (culprit && still_ns >= patience_ns) blame_hung(engine, run, culprit, still_ns);
}

// The ranks' own deadlines in a collective come first and name the culprit; this is for what they miss.
static void check_progress(gs_engine *engine, gs_run *run) {
    if (is_at_end(run)) {
        check_end(engine, run);
        return;
    }
    int64_t still_ns = engine->state.now_ns - run->progress_ns, patience_ns = patience_of(engine, run);
    if (still_ns < patience_ns) return;
    int waiting = 0;
    gs_member *culprit = NULL;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (member->activity == GS_ACTIVITY_LONG_WORK && still_ns < LONG_WORK_TIMES * patience_ns) return;
        if (member->activity == GS_ACTIVITY_WAITS) waiting++;
        else if (!culprit) culprit = member;
    }
    if (waiting == 0 && run->num_members > 1) culprit = NULL;
    blame_hung(engine, run, culprit, still_ns);
}

static void check_job(gs_engine *engine, gs_job *job) {
    double seconds = job->spec.steps.deadline_seconds;
    if (seconds <= 0 || job->stop_asked || gs_job_state_terminal(job->state)) return;
    if (gs_seconds_of(gs_job_age_ns(job, engine->state.now_ns)) < seconds) return;
    gs_job_stop(engine, job, false, GS_JOB_FAILED, "DeadlineExceeded",
                gs_seconds_of(engine->state.timing.drain_ns));
}

void gs_deadlines_tick(gs_engine *engine) {
    for (size_t i = 0; i < engine->state.jobs.count; i++) {
        gs_job *job = engine->state.jobs.items[i];
        if (gs_job_is_unrecorded(job) || !gs_state_has_turn(&engine->state, job)) continue;
        check_job(engine, job);
        gs_run *run = job->run;
        if (!run) continue;
        note_certain_death(engine, run);
        end_lingering(engine, run);
        leave_behind(engine, run);
        check_phase(engine, run);
        if (run->phase < GS_RUN_RELOADING) check_silence(engine, run);
        if (run->phase == GS_RUN_TRAINING && find_late(engine, run)) blame_late(engine, run);
        if (run->phase == GS_RUN_TRAINING) gs_claims_check(engine, run);
        if (run->phase == GS_RUN_TRAINING && !run->unheard) check_progress(engine, run);
    }
}

static int64_t later(int64_t at_ns, int64_t skipped_ns, int64_t now_ns) {
    return at_ns + skipped_ns < now_ns ? at_ns + skipped_ns : now_ns;
}

// Its age begins anew, and who was all but late is judged once what came meanwhile has been heard.
static int64_t later_deadline(const gs_state *state, int64_t deadline_ns, int64_t skipped_ns, bool forgets) {
    int64_t least_ns = state->now_ns + state->timing.dead_ns;
    deadline_ns += skipped_ns;
    return forgets && deadline_ns < least_ns ? least_ns : deadline_ns;
}

static void skip_in_run(const gs_state *state, gs_run *run, int64_t skipped_ns, bool forgets) {
    int64_t now_ns = state->now_ns, age_skipped_ns = forgets ? now_ns : skipped_ns;
    run->progress_ns = later(run->progress_ns, age_skipped_ns, now_ns);
    run->phase_since_ns = later(run->phase_since_ns, skipped_ns, now_ns);
    run->claim.since_ns = later(run->claim.since_ns, age_skipped_ns, now_ns);
    if (run->phase_deadline_ns) run->phase_deadline_ns = later_deadline(state, run->phase_deadline_ns, skipped_ns, forgets);
    if (run->drain_deadline_ns) run->drain_deadline_ns += skipped_ns;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        member->heard_ns = later(member->heard_ns, age_skipped_ns, now_ns);
        if (member->bye.reason) member->bye.at_ns = later(member->bye.at_ns, skipped_ns, now_ns);
    }
}

// What it waits for may have come, and is behind this.
static void skip_in_job(const gs_state *state, gs_job *job, int64_t skipped_ns, bool forgets) {
    gs_checkpoints *checkpoints = &job->checkpoints;
    checkpoints->asked_ns = later(checkpoints->asked_ns, skipped_ns, state->now_ns);
    // What people said is kept to: ticks that are a little late prolong it by nothing.
    if (forgets) job->waiting_since_ns = later(job->waiting_since_ns, skipped_ns, state->now_ns);
    if (job->apart_since_ns) job->apart_since_ns = later(job->apart_since_ns, skipped_ns, state->now_ns);
    if (job->run) skip_in_run(state, job->run, skipped_ns, forgets);
}

void gs_deadlines_skip(gs_engine *engine, int64_t skipped_ns) {
    gs_state *state = &engine->state;
    int64_t now_ns = state->now_ns;
    bool forgets = skipped_ns > state->timing.suspect_ns;
    int64_t age_skipped_ns = forgets ? now_ns : skipped_ns;
    gs_cluster *cluster = &state->cluster;
    gs_adoptions_skip(engine, skipped_ns);
    if (cluster->doubted_ns) cluster->doubted_ns = later(cluster->doubted_ns, skipped_ns, now_ns);
    for (size_t i = 0; i < state->jobs.count; i++) skip_in_job(state, state->jobs.items[i], skipped_ns, forgets);
    for (size_t i = 0; i < state->agents.count; i++) {
        gs_agent *agent = state->agents.items[i];
        agent->heard_ns = later(agent->heard_ns, age_skipped_ns, now_ns);
        agent->connected_ns = later(agent->connected_ns, age_skipped_ns, now_ns);
        if (agent->place_due_ns) agent->place_due_ns += skipped_ns;
        if (!gs_agent_is_connected(agent)) agent->lost_ns = later(agent->lost_ns, age_skipped_ns, now_ns);
    }
}
