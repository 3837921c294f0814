// A call that is kept for later: who is to forget it when its caller goes away.
#ifndef COORDINATOR_OBSERVE_HELD_H
#define COORDINATOR_OBSERVE_HELD_H

#include "rpc/server/rpc_server.h"

// Lives in the keeper's struct; the call points at it (gs_rpc_call_set_data).
typedef struct gs_held {
    void (*gone)(void *owner, gs_rpc_call_handle *call);
    void *owner;
} gs_held;

static inline void gs_held_keep(gs_held *held, gs_rpc_call_handle *call,
                                void (*gone)(void *owner, gs_rpc_call_handle *call), void *owner) {
    held->gone = gone;
    held->owner = owner;
    gs_rpc_call_set_data(call, held);
}

#endif
