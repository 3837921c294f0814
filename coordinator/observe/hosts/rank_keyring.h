// The keys of ranks, between the agents that tell them and the gate that lets them in: an agent speaks for what this
// coordinator has given it to run, and for nothing else.
#ifndef COORDINATOR_OBSERVE_HOSTS_RANK_KEYRING_H
#define COORDINATOR_OBSERVE_HOSTS_RANK_KEYRING_H

#include "coordinator/model/state.h"
#include "rpc/json/json.h"
#include "rpc/server/key_gate.h"
#include "rpc/server/rpc_peer.h"

// `told`: {keys:[{slot, incarnation, public}…]}, of the agent that `peer` is. What is wrong in it is passed over.
void gs_rank_keyring_take(gs_key_gate *gate, const gs_state *state, const gs_rpc_peer *peer, const gs_json *told);

#endif
