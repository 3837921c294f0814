// A ZeroMQ context: one for each process, so that its sockets find each other by "inproc://".
#ifndef RPC_WIRE_RPC_CONTEXT_H
#define RPC_WIRE_RPC_CONTEXT_H

#include "core/status.h"

typedef struct gs_rpc_context gs_rpc_context;

GS_NODISCARD gs_status gs_rpc_context_create(gs_rpc_context **out);
void gs_rpc_context_destroy(gs_rpc_context *context);     // after all sockets of it; NULL is fine
void *gs_rpc_context_zmq(const gs_rpc_context *context);  // for zmq_socket

#endif
