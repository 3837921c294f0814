#include "coordinator/engine/stops.h"

#include <stdio.h>

#include "coordinator/engine/base/moves.h"
#include "coordinator/engine/runs/run_life.h"

void gs_job_stop(gs_engine *engine, gs_job *job, bool now, gs_job_state outcome, const char *reason,
                 double grace_seconds) {
    if (!job->stop_asked) {
        job->stop_asked = true;
        job->stop_outcome = outcome;
        snprintf(job->stop_reason, sizeof job->stop_reason, "%s", reason);
    }
    gs_run *run = job->run;
    if (!run) {
        gs_job_end(engine, job, job->stop_outcome, reason, "stopped before it ran");
        return;
    }
    bool drains = !now && (run->phase == GS_RUN_TRAINING || run->phase == GS_RUN_RELOADING);
    if (job->state != GS_JOB_STOPPING) {
        gs_job_move(engine, job, GS_JOB_STOPPING, reason,
                    drains ? "finishing the step in flight" : "ending the trainers");
    }
    if (drains) gs_run_drain(engine, run, job->spec.checkpoint.on_stop, grace_seconds);
    else if (now || run->phase < GS_RUN_TRAINING) gs_run_kill(engine, run, now ? 0 : 2);
}
