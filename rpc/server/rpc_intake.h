// What comes in at a server: frames are checked, counted or refused, and become calls and their
// handlers' runs. Internal to the server; one thread.
#ifndef RPC_SERVER_RPC_INTAKE_H
#define RPC_SERVER_RPC_INTAKE_H

#include "rpc/server/refusals.h"
#include "rpc/server/rpc_call.h"
#include "rpc/server/rpc_calls.h"

typedef struct gs_rpc_intake {
    gs_rpc_peers *peers;
    gs_rpc_calls *calls;
    gs_rpc_handler handlers[GS_NUM_METHODS];
    gs_rpc_record_handler record_handlers[GS_NUM_METHODS];  // of methods whose body is no JSON
    void *ctx;
    int64_t now_ns, warned_ns, named_ns;
    // Counts of frames: valid ones, those that were dropped for a reason, requests that came again.
    uint64_t received[GS_NUM_METHODS];
    uint64_t num_remote;  // messages of peers in other processes
    uint64_t num_malformed, num_stale, num_flood, num_repeated, num_full, num_refused;
    gs_refusals refusals;
} gs_rpc_intake;

// Takes what the sockets have, control messages at once, API requests into the queue; bounded. True
// when input was left for the next turn.
bool gs_rpc_intake_receive(gs_rpc_intake *intake);
// Runs the handlers of API requests that wait; bounded.
void gs_rpc_intake_serve_api(gs_rpc_intake *intake);

#endif
