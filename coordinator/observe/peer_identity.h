// Of a message as it comes in: what it shows of its sender.
#ifndef COORDINATOR_OBSERVE_PEER_IDENTITY_H
#define COORDINATOR_OBSERVE_PEER_IDENTITY_H

#include "coordinator/model/identity.h"
#include "rpc/server/rpc_peer.h"

// Borrows the peer's name.
static inline gs_identity gs_identity_of_peer(const gs_rpc_peer *peer) {
    const gs_rpc_caller *caller = &peer->caller;
    return (gs_identity){.principal = {caller->is_known, caller->is_pool, caller->name},
                         .incarnation = peer->incarnation,
                         .job = peer->job,
                         .token = peer->token};
}

#endif
