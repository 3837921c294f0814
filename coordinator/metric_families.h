// Families of the catalogue that belong to the coordinator itself. Loop thread.
#ifndef COORDINATOR_METRIC_FAMILIES_H
#define COORDINATOR_METRIC_FAMILIES_H

#include "coordinator/coordinator.h"

// What happens between scrapes is counted as it happens.
void gs_metrics_observe_rendezvous(gs_coordinator *coordinator, const char *outcome, double seconds);
void gs_metrics_observe_plan(gs_coordinator *coordinator, double seconds);
void gs_metrics_count_restart(gs_coordinator *coordinator, const gs_job *job, const char *reason);
void gs_metrics_count_fault(gs_coordinator *coordinator, const gs_job *job, const char *kind,
                            const char *verdict);
void gs_metrics_count_rescale(gs_coordinator *coordinator, const gs_job *job, const char *direction);
void gs_metrics_observe_recovery(gs_coordinator *coordinator, const gs_job *job, double seconds);

// What is read when somebody asks.
void gs_metrics_refresh(gs_coordinator *coordinator);
// One slice of a job (job_families.h); false after the last one.
bool gs_metrics_refresh_job_slice(gs_coordinator *coordinator, gs_job *job, int slice);
// The series of a job that ended long ago are gone.
bool gs_metrics_expired(const gs_coordinator *coordinator, const gs_job *job);

#endif
