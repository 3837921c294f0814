// A job as the API shows it. Loop thread.
#ifndef COORDINATOR_OBSERVE_JOB_VIEW_H
#define COORDINATOR_OBSERVE_JOB_VIEW_H

#include <stdbool.h>

#include "coordinator/model/run.h"
#include "coordinator/observe/observer.h"

gs_json *gs_job_to_view(const gs_job *job, bool with_spec);
// The items of GetJobWorkers: of the run, or of the last one.
gs_json *gs_job_members_to_view(const gs_job *job);
gs_json *gs_run_members_to_view(const gs_job *job, const gs_run *run);

#endif
