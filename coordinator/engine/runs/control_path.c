#include "coordinator/engine/runs/control_path.h"

#include "coordinator/engine/base/moves.h"
#include "core/clock.h"

#define LOOK_NS (200 * GS_NS_PER_MS)

// A step was told when it had been silent for so long already that it would be judged otherwise. One that came a moment behind its
// last word says nothing of the time since: where all are cut off at once, each but the last has seen such a step.
static bool is_spared(const gs_engine *engine, const gs_run *run, const gs_member *member) {
    if (!gs_member_is_here(member) || member->stage == GS_MEMBER_LEAVING) return false;
    int64_t dead_ns = gs_state_dead_ns(&engine->state, member->heartbeat_ns);
    return run->step > member->heard_at_step && run->progress_ns - member->heard_ns >= dead_ns;
}

// Only a word of its own takes the mark away: its age begins anew as well where this process stood, or its worker is back.
static bool is_still(const gs_member *member) {
    return member->stage < GS_MEMBER_LEAVING && member->heard_at_step == member->control.at_step;
}

static void mark(gs_engine *engine, gs_run *run, gs_member *member) {
    gs_control_path *path = &run->control;
    int64_t silent_ns = engine->state.now_ns - member->heard_ns;
    member->control = (gs_member_control){engine->state.wall_ms - silent_ns / GS_NS_PER_MS, member->heard_at_step};
    path->num_marked++;
    gs_mind_log(engine, GS_SEVERITY_WARNING, "control path degraded", "job=%s rank=%d worker=%s generation=%u", run->job->id_text,
                gs_member_index(member), member->worker, run->generation);
    if (path->since_ns) return;
    path->since_ns = member->heard_ns;
    gs_note_add(engine, run->job, member, GS_SEVERITY_WARNING, "ControlPathDegraded",
                "rank %d on worker %s has not been heard for %lld ms, and generation %u steps on with it: it is left alone",
                gs_member_index(member), member->worker, (long long)(silent_ns / GS_NS_PER_MS), run->generation);
}

static void forget(gs_run *run) {
    for (int i = 0; i < run->num_members; i++) run->members[i].control = (gs_member_control){0};
    run->control = (gs_control_path){0};
}

// Told only when it has lasted for a worker's silence, so that a way that comes and goes is one event.
static void note_end(gs_engine *engine, gs_run *run) {
    gs_control_path *path = &run->control;
    if (!path->clear_ns) path->clear_ns = engine->state.now_ns;
    if (engine->state.now_ns - path->clear_ns < engine->state.timing.agent_dead_ns) return;
    gs_note_add(engine, run->job, NULL, GS_SEVERITY_INFO, "ControlPathRestored",
                "all ranks of generation %u are heard again: for %lld ms one at least was not (%d in all)", run->generation,
                (long long)((path->clear_ns - path->since_ns) / GS_NS_PER_MS), path->num_marked);
    forget(run);
}

static void look(gs_engine *engine, gs_run *run) {
    gs_control_path *path = &run->control;
    path->num_degraded = 0;
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (member->control.since_ms && !is_still(member)) member->control = (gs_member_control){0};
        if (!member->control.since_ms && is_spared(engine, run, member)) mark(engine, run, member);
        path->num_degraded += member->control.since_ms != 0;
    }
    if (path->num_degraded) path->clear_ns = 0;
    else if (path->since_ns) note_end(engine, run);
}

void gs_control_paths_tick(gs_engine *engine) {
    int64_t now_ns = engine->state.now_ns;
    for (size_t i = 0; i < engine->state.jobs.count; i++) {
        gs_job *job = engine->state.jobs.items[i];
        gs_run *run = gs_job_is_unrecorded(job) ? NULL : job->run;
        if (!run || !gs_state_has_turn(&engine->state, job)) continue;
        // With its generation ends what could be said of it: who is missed then has events of its own.
        if (run->phase != GS_RUN_TRAINING) {
            if (run->control.since_ns) forget(run);
            continue;
        }
        if (now_ns < run->control.next_look_ns) continue;
        look(engine, run);
        run->control.next_look_ns = now_ns + LOOK_NS;
    }
}
