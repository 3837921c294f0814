#include "coordinator/observe/job_sight.h"

gs_job_metrics *gs_sight_own_metrics(gs_observer *observer, gs_job *job) {
    gs_job_sight *sight = job->sight;
    if (sight->metrics != observer->no_metrics) return sight->metrics;
    gs_job_metrics *made = gs_job_metrics_create();
    if (made) sight->metrics = made;
    return made;
}

void gs_sight_note_row(const gs_observer *observer, uint64_t id, gs_status status) {
    gs_job *job = gs_job_table_get(&observer->state->jobs, id);
    if (job && job->sight) job->sight->row_failed = status.code != GS_OK;
}
