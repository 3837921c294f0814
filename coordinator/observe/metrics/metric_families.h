// Families of the catalogue that belong to the coordinator itself. Loop thread.
#ifndef COORDINATOR_OBSERVE_METRICS_METRIC_FAMILIES_H
#define COORDINATOR_OBSERVE_METRICS_METRIC_FAMILIES_H

#include "coordinator/observe/observer.h"

// What is read when somebody asks.
void gs_metrics_refresh(gs_observer *observer);
// One slice of a job (job_families.h); false after the last one.
bool gs_metrics_refresh_job_slice(gs_observer *observer, gs_job *job, int slice);
// The series of a job that ended long ago are gone.
bool gs_metrics_expired(const gs_observer *observer, const gs_job *job);

#endif
