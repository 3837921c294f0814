// What is in the way of training on the workers that there are, asked of themselves: each says what it has and listens at its data
// address; then each tries to reach every other, in both directions; and, where links are to be measured, pair by pair, so that no
// two measurements share a host's line in one direction, and then by sums of all: those make a communicator, whose words travel this
// way until it is there. Loop thread.
//
// One at a time. It decides nothing, and nothing of it stays.
#ifndef COORDINATOR_OBSERVE_HOSTS_EXAMINATION_H
#define COORDINATOR_OBSERVE_HOSTS_EXAMINATION_H

#include "coordinator/observe/observer.h"

#define GS_EXAMINED_HOSTS 64  // at most
#define GS_MEASURED_HOSTS 16  // at most: each has a round with every other

void gs_examine_workers(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);
void gs_examined(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer, const gs_json *request);

// Goes on without those that have not answered in time.
void gs_examination_tick(gs_observer *observer);
void gs_examination_end(gs_observer *observer);  // the coordinator stops

#endif
