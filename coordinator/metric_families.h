// The metrics page: families of the catalogue filled from the state when somebody asks. Loop thread.
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

void gs_get_metrics(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                    const gs_json *request);

#endif
