// Jobs, their ranks and their checkpoints as lists.
#ifndef COORDINATOR_SERVE_JOB_LISTS_H
#define COORDINATOR_SERVE_JOB_LISTS_H

#include "coordinator/observe/observer.h"

void gs_get_job(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);
void gs_list_jobs(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);
void gs_get_job_workers(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);
void gs_list_checkpoints(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);

#endif
