// The families of the catalogue that belong to a job, filled from its state. Loop thread.
#ifndef COORDINATOR_OBSERVE_METRICS_JOB_FAMILIES_H
#define COORDINATOR_OBSERVE_METRICS_JOB_FAMILIES_H

#include "coordinator/observe/observer.h"

// Sets the series of the job that this version can feed, a slice at a time: 0 is the first, false
// after the last one. Above 64 ranks those of single ranks are replaced by largest and median.
bool gs_job_families_refresh_slice(gs_observer *observer, gs_job *job, int slice);

#endif
