// GetJobDiagnosis: what is known of a job, judged by diagnosis.h. Loop thread.
#ifndef COORDINATOR_OBSERVE_METRICS_DIAGNOSE_H
#define COORDINATOR_OBSERVE_METRICS_DIAGNOSE_H

#include "coordinator/observe/observer.h"

void gs_get_job_diagnosis(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                          const gs_json *request);

#endif
