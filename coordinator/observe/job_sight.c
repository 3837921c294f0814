#include "coordinator/observe/job_sight.h"

gs_job_metrics *gs_sight_own_metrics(gs_observer *observer, gs_job *job) {
    gs_job_sight *sight = job->sight;
    if (sight->metrics != observer->no_metrics) return sight->metrics;
    gs_job_metrics *made = gs_job_metrics_create();
    if (made) sight->metrics = made;
    return made;
}
