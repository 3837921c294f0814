#include "coordinator/engine/runs/absence.h"

#include <string.h>

#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/runs/run_life.h"
#include "coordinator/engine/runs/witness.h"
#include "core/clock.h"

#define LOOK_NS GS_NS_PER_SEC
#define QUIET_LOOKS 6  // the first sign comes within five seconds of a cut, the others a second apart
#define WITNESSED_LOOKS 3  // where another worker of their host is heard all the while
#define MUTE_LOOKS 3   // that told nothing: it is not known where they could say that they live
#define FENCED_TIMES 3 // of an agent's silence
#define DOUBTS 6       // looks at a disk that does not answer

// Who is told to be heard more seldom notices later that nobody is: behind three paces, and the one in which it was told.
static int64_t more_patience_ns(const gs_run *run) { return run->absence.pace_ns * 9 / 2; }

static gs_run *run_of(const gs_job *job) { return gs_job_is_unrecorded(job) ? NULL : job->run; }

static const gs_agent *agent_of(const gs_engine *engine, const gs_member *member) {
    return gs_agent_table_find(&engine->state.agents, member->worker);
}

// Of an agent that was never here in this life of the coordinator, the fence of its ranks says whether it looks there.
static bool is_gone(const gs_engine *engine, const gs_member *member) {
    const gs_agent *agent = agent_of(engine, member);
    return !member->stream.call && (!agent || (!gs_agent_is_connected(agent) && agent->looks_out));
}

// Their connections were closed, all of them. Else some are silent: nothing has closed them, or nobody here had them.
static bool are_closed(const gs_engine *engine, const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        const gs_agent *agent = agent_of(engine, member);
        if (member->stage != GS_MEMBER_EXITED && !(member->stream_closed && agent && agent->was_closed)) return false;
    }
    return true;
}

// One of them has not been here in this life of the coordinator: what another has told it, nobody knows.
static bool are_of_before(const gs_engine *engine, const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        if (member->stage != GS_MEMBER_EXITED && (!member->stream_lost_ns || !agent_of(engine, member))) return true;
    }
    return false;
}

// Somebody else is heard, so that it is not this host that is cut off; and could take their place.
static bool is_other_heard(const gs_engine *engine) {
    const gs_agent_table *agents = &engine->state.agents;
    for (size_t i = 0; i < agents->count; i++) {
        const gs_agent *agent = agents->items[i];
        int64_t patience_ns = engine->state.timing.agent_dead_ns / 2 + 2 * agent->told_heartbeat_ns;
        if (gs_agent_is_connected(agent) && engine->state.now_ns - agent->heard_ns < patience_ns) return true;
    }
    return false;
}

// When the last connection of any of them ended, as it was: what this process does not do for a moment, under a load, must not
// begin their absence anew each time.
static int64_t gone_since_ns(const gs_engine *engine, const gs_run *run) {
    int64_t since_ns = run->begun_ns;
    for (int i = 0; i < run->num_members; i++) {
        const gs_member *member = &run->members[i];
        const gs_agent *agent = agent_of(engine, member);
        if (agent && agent->gone_ns > since_ns) since_ns = agent->gone_ns;
        if (member->stream_lost_ns > since_ns) since_ns = member->stream_lost_ns;
    }
    return since_ns;
}

// Who has lost its connection may just be about to make another.
static bool is_missed(const gs_engine *engine, const gs_run *run) {
    const gs_timing *timing = &engine->state.timing;
    int64_t patience_ns = are_closed(engine, run) ? timing->agent_dead_ns : timing->absent_ns;
    return engine->state.now_ns - run->absence.gone_ns >= patience_ns + more_patience_ns(run);
}

static bool is_absent(const gs_engine *engine, const gs_run *run) {
    // Of one that ends, whom nobody could tell so: as long as nobody of it has left, they may train on.
    if (run->phase < GS_RUN_TRAINING || (run->phase >= GS_RUN_SETTLING && gs_run_is_broken(run))) return false;
    int count = 0;
    for (int i = 0; i < run->num_members; i++) {
        if (run->members[i].stage == GS_MEMBER_EXITED) continue;
        if (!is_gone(engine, &run->members[i])) return false;
        count++;
    }
    return count > 0;
}

bool gs_absence_is_told(const gs_engine *engine, const gs_run *run) {
    return is_absent(engine, run) && run->absence.mute_looks < MUTE_LOOKS;
}

static bool are_witnessed(const gs_engine *engine, const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        const gs_agent *agent = agent_of(engine, &run->members[i]);
        if (run->members[i].stage != GS_MEMBER_EXITED && !(agent && gs_witness_of_end(engine, agent))) return false;
    }
    return are_closed(engine, run);
}

static void look(gs_engine *engine, gs_run *run) {
    gs_absence *absence = &run->absence;
    int quiet_looks = are_witnessed(engine, run) ? WITNESSED_LOOKS : QUIET_LOOKS;
    gs_effect *effect = gs_mind_do(engine, GS_DO_LOOK_FOR_LIFE);
    effect->job = run->job;
    effect->job_id = run->job->id;
    effect->life = (gs_life_look){.generation = run->generation, .number = absence->number,
                                  .raises = absence->quiet_looks >= quiet_looks};
    absence->has_raised |= effect->life.raises;
    absence->is_asked = true;
    absence->next_look_ns = engine->state.now_ns + LOOK_NS;
}

// Whether their directory was closed to them may have been asked for and not be known.
static void note_doubt(gs_run *run) {
    if (run->absence.has_raised) run->absence.num_doubts = DOUBTS;
    run->absence.has_raised = false;
}

// They were back, and are gone again, between two ticks.
static void note_return(const gs_engine *engine, gs_run *run) {
    int64_t gone_ns = gone_since_ns(engine, run);
    if (gone_ns > run->absence.gone_ns) {
        note_doubt(run);
        run->absence.quiet_looks = 0;
    }
    run->absence.gone_ns = gone_ns;
}

static bool leaves_signs(const gs_engine *engine, const gs_run *run) {
    for (int i = 0; i < run->num_members; i++) {
        const gs_agent *agent = gs_agent_table_find(&engine->state.agents, run->members[i].worker);
        if (agent && agent->looks_out) return true;
    }
    return false;
}

static void give_up(gs_engine *engine, gs_run *run) {
    gs_note_add(engine, run->job, NULL, GS_SEVERITY_WARNING, "RanksGivenUp",
                "no sign of life of generation %u where its checkpoints lie, which is closed to it now: its ranks have ended",
                run->generation);
    for (int i = 0; i < run->num_members; i++)
        if (run->members[i].stage != GS_MEMBER_EXITED) gs_member_exited(engine, &run->members[i], -1, 0, NULL);
}

// They are back, too late: what they would save is refused.
static void end_fenced(gs_engine *engine, gs_run *run) {
    gs_blame blame = {.kind = GS_FAILURE_LOST, .reason = "RanksGivenUp", .class = "infrastructure", .fault = GS_FAULT_PEER_LOST};
    run->suspicious = true;
    gs_run_fail(engine, run, &blame, "they were not heard for so long that their checkpoints were closed to generation %u",
                run->generation);
}

// Where agents leave no signs, no life of the coordinator has closed anything. They may come later than their trainers.
static void recall(gs_engine *engine, gs_run *run) {
    run->absence.next_look_ns = engine->state.now_ns + LOOK_NS;
    if (!leaves_signs(engine, run)) return;
    run->absence.was_recalled = true;
    run->absence.num_doubts = DOUBTS;
}

// They are here. What is known of their absence is over, but not what may have become of their directory meanwhile; nor what
// another life of the coordinator may have done to it.
static void welcome_back(gs_engine *engine, gs_run *run) {
    gs_absence *absence = &run->absence;
    bool is_over = absence->fenced_ns && (run->phase == GS_RUN_TRAINING || run->phase == GS_RUN_RELOADING);
    bool is_time = run->phase == GS_RUN_TRAINING && !absence->is_asked && engine->state.now_ns >= absence->next_look_ns;
    note_doubt(run);
    if (is_time && run->was_reloaded && !absence->was_recalled) recall(engine, run);
    *absence = (gs_absence){.is_asked = absence->is_asked, .num_doubts = absence->num_doubts, .was_recalled = absence->was_recalled,
                            .next_look_ns = absence->next_look_ns};
    if (is_over) end_fenced(engine, run);
    else if (absence->num_doubts && is_time) look(engine, run);
}

// What connections were told before counts until they have asked again, and been answered.
static void note_pace(gs_state *state) {
    int64_t pace_ns = gs_timing_pace(state->agents.count + state->members.count);
    if (pace_ns < state->pace_ns && state->now_ns - state->paced_ns < 2 * state->pace_ns) return;
    state->pace_ns = pace_ns;
    state->paced_ns = state->now_ns;
}

void gs_absences_tick(gs_engine *engine) {
    const gs_timing *timing = &engine->state.timing;
    int64_t now_ns = engine->state.now_ns;
    note_pace(&engine->state);
    for (size_t i = 0; i < engine->state.jobs.count; i++) {
        gs_run *run = run_of(engine->state.jobs.items[i]);
        if (!run || !gs_state_has_turn(&engine->state, run->job)) continue;
        gs_absence *absence = &run->absence;
        if (!is_absent(engine, run)) {
            welcome_back(engine, run);
            continue;
        }
        note_return(engine, run);
        int64_t pace_ns = are_of_before(engine, run) ? timing->longest_pace_ns : engine->state.pace_ns;
        if (absence->pace_ns < pace_ns) absence->pace_ns = pace_ns;
        bool may_tell = are_closed(engine, run) || is_other_heard(engine);
        if (!may_tell) absence->quiet_looks = 0;
        if (absence->fenced_ns) {
            if (now_ns - absence->fenced_ns >= FENCED_TIMES * timing->agent_dead_ns + more_patience_ns(run)) give_up(engine, run);
        } else if (may_tell && !absence->is_asked && now_ns >= absence->next_look_ns && is_missed(engine, run)) {
            look(engine, run);
        }
    }
}

// Another number than last time: whoever wrote it was alive then.
static void note_life(gs_engine *engine, gs_run *run, const gs_life_look *life) {
    gs_absence *absence = &run->absence;
    bool lives = absence->has_looked && life->number != absence->number;
    absence->quiet_looks = lives ? 0 : absence->quiet_looks + 1;
    absence->has_looked = true;
    absence->number = life->number;
    if (!lives || run->job->state != GS_JOB_RECOVERING) return;
    gs_job_explain(engine, run->job, "RanksCutOff",
                   "its ranks train on, as they say where its checkpoints lie: the network between them and the coordinator is "
                   "cut. The job goes on when it is whole, or after %lld s; `gradsync release` gives them up",
                   (long long)(run->orphan_ns / GS_NS_PER_SEC));
}

void gs_on_life_looked(gs_engine *engine, const gs_completion *done) {
    gs_job *job = gs_job_table_get(&engine->state.jobs, done->job);
    gs_run *run = job ? run_of(job) : NULL;
    if (!run || run->generation != done->life.generation) return;
    gs_absence *absence = &run->absence;
    absence->is_asked = false;
    if (done->life.is_raised) {  // whoever may have come back meanwhile
        absence->fenced_ns = engine->state.now_ns;
        return;
    }
    if (!done->status.code) absence->num_doubts = 0;
    else if (absence->num_doubts) absence->num_doubts--;
    if (!is_absent(engine, run)) return;
    // After a raise that failed it may be open or closed to them: the next look tells.
    bool is_answer = !done->status.code && done->life.stands;
    absence->mute_looks = is_answer ? 0 : absence->mute_looks + 1;
    if (is_answer) note_life(engine, run, &done->life);
    else if (!done->life.raises) absence->quiet_looks = 0;
    if (!is_answer && job->state == GS_JOB_RECOVERING)
        gs_job_explain(engine, job, "WorkerGone",
                       "its ranks have ended or are cut off, and where its checkpoints lie nothing tells which (%s): the job goes on "
                       "when their worker is back, or after %lld s; `gradsync release` gives them up",
                       done->status.code ? done->status.message : "they have not begun to train there",
                       (long long)(run->orphan_ns / GS_NS_PER_SEC));
}
