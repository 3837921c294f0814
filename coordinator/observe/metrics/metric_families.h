// Families of the catalogue that belong to the coordinator itself. Loop thread.
#ifndef COORDINATOR_OBSERVE_METRICS_METRIC_FAMILIES_H
#define COORDINATOR_OBSERVE_METRICS_METRIC_FAMILIES_H

#include "coordinator/observe/observer.h"

// What is read when somebody asks.
void gs_metrics_refresh(gs_observer *observer);
// The same of this process, where files of /proc are counted: any thread.
void gs_metrics_refresh_process(gs_metrics *metrics);
// The series of a job that ended long ago are gone.
bool gs_metrics_expired(const gs_observer *observer, const gs_job *job);

#endif
