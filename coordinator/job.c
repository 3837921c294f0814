#include "coordinator/job.h"

#include <stdlib.h>
#include <string.h>

static const char *const state_names[GS_NUM_JOB_STATES] = {
    "queued", "starting", "running", "recovering", "stopping", "succeeded", "failed", "cancelled",
};

#define BIT(state) (1u << (state))
// The row of a state: what may follow.
static const unsigned followers[GS_NUM_JOB_STATES] = {
    [GS_JOB_QUEUED] = BIT(GS_JOB_QUEUED) | BIT(GS_JOB_STARTING) | BIT(GS_JOB_RECOVERING) |
                      BIT(GS_JOB_SUCCEEDED) | BIT(GS_JOB_FAILED) | BIT(GS_JOB_CANCELLED),
    [GS_JOB_STARTING] = BIT(GS_JOB_STARTING) | BIT(GS_JOB_RUNNING) | BIT(GS_JOB_QUEUED) |
                        BIT(GS_JOB_STOPPING) | BIT(GS_JOB_SUCCEEDED) | BIT(GS_JOB_FAILED) |
                        BIT(GS_JOB_CANCELLED),
    [GS_JOB_RUNNING] = BIT(GS_JOB_RUNNING) | BIT(GS_JOB_RECOVERING) | BIT(GS_JOB_STOPPING) |
                       BIT(GS_JOB_SUCCEEDED) | BIT(GS_JOB_FAILED) | BIT(GS_JOB_CANCELLED),
    [GS_JOB_RECOVERING] = BIT(GS_JOB_RECOVERING) | BIT(GS_JOB_RUNNING) | BIT(GS_JOB_QUEUED) |
                          BIT(GS_JOB_STOPPING) | BIT(GS_JOB_SUCCEEDED) | BIT(GS_JOB_FAILED) |
                          BIT(GS_JOB_CANCELLED),
    [GS_JOB_STOPPING] = BIT(GS_JOB_STOPPING) | BIT(GS_JOB_SUCCEEDED) | BIT(GS_JOB_FAILED) |
                        BIT(GS_JOB_CANCELLED),
};
#undef BIT

const char *gs_job_state_name(gs_job_state state) {
    return (unsigned)state < GS_NUM_JOB_STATES ? state_names[state] : "unknown";
}

bool gs_job_state_from_name(gs_job_state *state, const char *name) {
    for (int i = 0; i < GS_NUM_JOB_STATES; i++) {
        if (strcmp(state_names[i], name) != 0) continue;
        *state = (gs_job_state)i;
        return true;
    }
    return false;
}

bool gs_job_state_terminal(gs_job_state state) { return state >= GS_JOB_SUCCEEDED; }

bool gs_job_state_may_follow(gs_job_state from, gs_job_state to) {
    return (followers[from] >> to & 1u) != 0;
}

gs_job *gs_job_create(uint64_t id, const gs_job_spec *spec, gs_json *spec_json) {
    gs_job *job = calloc(1, sizeof *job);
    if (!job) {
        gs_json_release(spec_json);
        return NULL;
    }
    job->id = id;
    gs_job_id_format(job->id_text, id);
    job->spec = *spec;
    job->spec_json = spec_json;
    job->stop_outcome = GS_JOB_CANCELLED;
    job->plan_rebuilds = gs_json_new_object();
    return job;
}

void gs_job_destroy(gs_job *job) {
    if (!job) return;
    gs_json_release(job->spec_json);
    gs_json_release(job->failure);
    gs_json_release(job->final_runs);
    gs_json_release(job->plan);
    gs_json_release(job->plan_history);
    gs_json_release(job->plan_rebuilds);
    gs_json_release(job->ready_order);
    gs_json_release(job->observed_order);
    free(job->sample);
    free(job);
}
