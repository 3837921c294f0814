// The families of the catalogue that belong to a job, written from what it was at one moment. Any thread.
#ifndef COORDINATOR_OBSERVE_METRICS_JOB_FAMILIES_H
#define COORDINATOR_OBSERVE_METRICS_JOB_FAMILIES_H

#include "coordinator/observe/metrics/job_shot.h"
#include "coordinator/observe/metrics/page_text.h"

// All series of the job that this version can feed. Without job->shows_ranks those of single ranks are replaced by
// largest and median.
void gs_job_families_write(gs_page_text *text, const gs_job_shot *job);
int gs_job_families_ranks(const gs_job_shot *job);  // that have series of their own where they are shown

#endif
