// Who a message came from. A value.
#ifndef RPC_SERVER_RPC_PEER_H
#define RPC_SERVER_RPC_PEER_H

#include <stdint.h>

#include "rpc/server/rpc_caller.h"

typedef struct gs_rpc_peer {
    uint64_t connection;  // grows with each connection, never reused
    uint64_t incarnation, job;
    uint64_t token;                          // likewise; 0: it shows none
    uint32_t generation, coordinator_epoch;  // as in the header of this message
    gs_rpc_caller caller;                    // of its connection
} gs_rpc_peer;

#endif
