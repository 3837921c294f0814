// From Hello to go: Hello, prepare, Ready, start, Exchange, CommUp. Loop thread.
#ifndef COORDINATOR_RENDEZVOUS_H
#define COORDINATOR_RENDEZVOUS_H

#include "coordinator/coordinator.h"
#include "coordinator/run.h"

void gs_hello(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);
void gs_ready(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);
void gs_exchange_bytes(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                       const gs_json *request);
void gs_comm_up(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                const gs_json *request);

#endif
