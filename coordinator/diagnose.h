// GetJobDiagnosis: what is known of a job, judged by diagnosis.h. Loop thread.
#ifndef COORDINATOR_DIAGNOSE_H
#define COORDINATOR_DIAGNOSE_H

#include "coordinator/coordinator.h"

void gs_get_job_diagnosis(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                          const gs_json *request);

#endif
