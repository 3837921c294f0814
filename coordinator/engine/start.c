#include "coordinator/engine/start.h"

#include <stdlib.h>

#include "coordinator/engine/base/checkpoints.h"
#include "coordinator/engine/base/generations.h"
#include "coordinator/engine/base/moves.h"

// Who is out of reach goes by what a life before this one has said, and all others may hear of a longer limit once it is written down:
// a next life, with another setting, counts on it.
static void take_orphan_limit(gs_engine *engine, gs_run *run) {
    int64_t limit_ns = engine->state.timing.orphan_ns;
    if (run->orphan_ns >= limit_ns) return;
    run->orphan_ns = limit_ns;
    gs_job_touch_now(engine, run->job);
}

// Its members went on, as far as they had not heard that their generation is over.
static void resume_run(gs_engine *engine, gs_run *run) {
    const gs_timing *timing = &engine->state.timing;
    int64_t now_ns = engine->state.now_ns;
    run->begun_ns = run->phase_since_ns = run->progress_ns = now_ns;
    run->phase_deadline_ns = now_ns + timing->grace_ns;
    // Who is back by then has the time to ask that it has in any life.
    if (run->phase == GS_RUN_SETTLING) run->phase_deadline_ns += timing->settle_ns;
    if (run->draining) run->drain_deadline_ns = now_ns + timing->drain_ns;
    take_orphan_limit(engine, run);
    for (int i = 0; i < run->num_members; i++) {
        gs_member *member = &run->members[i];
        if (!gs_u64_map_set(&engine->state.members, member->incarnation, member)) abort();
    }
}

// A job that was starting when the coordinator ended starts again; one that trained waits for its members.
static void resume_job(gs_engine *engine, gs_job *job) {
    int64_t now_ns = engine->state.now_ns;
    job->aged_ns = job->waiting_since_ns = now_ns;
    job->waiting_since_ms = engine->state.wall_ms;
    if (gs_job_state_terminal(job->state)) return;
    if (job->run) {
        resume_run(engine, job->run);
        return;
    }
    // As far as its row knows the start that left something behind has come to nothing: no rank of it holds a step.
    gs_checkpoints_leave_none(job);
    // Its row may be older than what became of it, also that of one that has never run as far as it says, and its last ranks may
    // still be there: who trains for it has time to say so.
    job->not_before_ns = now_ns + engine->state.timing.grace_ns;
    if (job->state == GS_JOB_STOPPING) {
        gs_job_end(engine, job, job->stop_outcome, job->stop_reason, "stopped at step %lld", (long long)job->step);
    } else if (job->state != GS_JOB_QUEUED) {
        if (job->state == GS_JOB_RUNNING)
            gs_job_move(engine, job, GS_JOB_RECOVERING, "CoordinatorRestarted", "starting again");
        gs_job_move(engine, job, GS_JOB_QUEUED, "CoordinatorRestarted",
                    "the coordinator restarted while the job was starting");
    }
}

static void raise_generations(gs_engine *engine, gs_job *job) {
    if (job->least_generation) {
        gs_generations_raise(engine, job->least_generation);
        return;
    }
    // Adopted by a release that didn't write down where its own numbers begin.
    bool is_known = job->generation < engine->state.generations.next;
    if (!is_known && !gs_generations_leap(engine, job->generation, &job->least_generation))
        gs_mind_log(engine, GS_SEVERITY_ERROR, "no generations left", "job=%s generation=%u", job->id_text, job->generation);
}

void gs_on_start(gs_engine *engine) {
    engine->state.begun_ns = engine->state.ticked_ns = engine->state.now_ns;  // a process may stand still before its first tick
    for (size_t i = 0; i < engine->state.jobs.count; i++) {
        gs_job *job = engine->state.jobs.items[i];
        resume_job(engine, job);
        // Of a job that was adopted: its row may have come to the disk before the numbers that follow.
        raise_generations(engine, job);
        gs_checkpoints_resume(engine, job);
        job->checkpoints.wants_look = true;
    }
    gs_checkpoints_look_around(engine);
    gs_note_add(engine, NULL, NULL, GS_SEVERITY_INFO, "CoordinatorStarted",
                "coordinator epoch %u, %zu jobs known", engine->state.cluster.epoch, engine->state.jobs.count);
}
