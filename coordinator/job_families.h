// The families of the catalogue that belong to a job, filled from its state. Loop thread.
#ifndef COORDINATOR_JOB_FAMILIES_H
#define COORDINATOR_JOB_FAMILIES_H

#include "coordinator/coordinator.h"

// Sets every series of the job that this version can feed.
void gs_job_families_refresh(gs_coordinator *coordinator, gs_job *job);

#endif
