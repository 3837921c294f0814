// A plan for tensors that no job has: what if. A pure function behind a method.
#ifndef COORDINATOR_SERVE_PLAN_PREVIEW_H
#define COORDINATOR_SERVE_PLAN_PREVIEW_H

#include "rpc/json/json.h"
#include "rpc/server/rpc_server.h"

void gs_preview_plan(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                     const gs_json *request);

#endif
