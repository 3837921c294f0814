// What agents and trainers are told of this life of the coordinator, and say again to the next: with a proof, where keys are shown,
// for a worker could make up any life, and with it end this coordinator for good.
#ifndef COORDINATOR_OBSERVE_HOSTS_TOLD_LIFE_H
#define COORDINATOR_OBSERVE_HOSTS_TOLD_LIFE_H

#include "coordinator/engine/base/event.h"
#include "coordinator/model/cluster.h"
#include "rpc/json/json.h"
#include "rpc/server/key_gate.h"

// Nothing where there is no gate.
void gs_item_prove_life(gs_json *item, const char *key, const gs_key_gate *gate, const gs_cluster *cluster, int64_t generations_end);

// A hello: what it has seen is doubtful where its sender shows a key, and no proof of that.
void gs_told_life_check(gs_seen_life *seen, const gs_key_gate *gate, const gs_principal *principal, const gs_json *hello);
// The same of the numbers of generations that other lives of this cluster have reserved.
void gs_told_numbers_check(gs_agent_hello *hello, const gs_key_gate *gate, const gs_cluster *cluster, const gs_json *request);

#endif
