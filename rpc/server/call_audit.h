// Lines of the audit for calls that change something at the control port, whoever makes them: an operator's key that is used without
// an API, an API that is a process of its own, a worker that enrols. One when the call begins and one when it is answered, as for
// requests of the API. Calls of the API in this process have its lines, and none here. Internal to the server; one thread.
#ifndef RPC_SERVER_CALL_AUDIT_H
#define RPC_SERVER_CALL_AUDIT_H

#include "rpc/json/json.h"
#include "rpc/keys/audit.h"
#include "rpc/server/rpc_calls.h"

// Before the handler runs. What the call is about stays with it until it is dropped.
void gs_call_audit_begin(gs_audit *audit, gs_rpc_call_entry *call, const gs_json *request);
// `body` is that of the answer; NULL: it has none. Nothing where it had not begun.
void gs_call_audit_end(gs_audit *audit, gs_rpc_call_entry *call, gs_code code, const gs_json *body);
// "10.0.0.3:51234"; "inproc", or "?" where the connection is gone.
void gs_call_audit_address(char text[64], int fd);

#endif
