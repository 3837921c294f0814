// A server on a thread of its own with handlers that count and answer, for tests of both ends.
//
// GetJob echoes its request and counts. Exchange and ReadLogs are kept until release_held. Watch
// sends request.count items and ends when request.end is true, else stays open. Heartbeat counts.
// GetSystem holds the loop for longer than silence may last.
#ifndef TESTS_UNIT_RPC_RPC_FIXTURE_H
#define TESTS_UNIT_RPC_RPC_FIXTURE_H

#include <stdatomic.h>

#include "core/thread.h"
#include "rpc/client/rpc_client.h"
#include "rpc/server/rpc_server.h"

#define MAX_HELD 64

typedef struct rpc_fixture {
    gs_rpc_context *context;
    gs_rpc_server *server;
    gs_thread *thread;
    char endpoint[128];
    int pings_a_second;  // 0: as many as a coordinator takes
    atomic_int num_turns, num_calls, num_one_way, num_gone_calls, num_gone_peers, num_held, num_streams;
    atomic_bool release_held, paused, flood_streams;
    atomic_bool echo_ends_streams;  // GetJob ends all that Watch kept, before it answers
    atomic_bool all_end_with_one;  // a held call that is gone ends the others, as a lost rank does
    atomic_ullong malformed, stale, repeated, connections, calls_open, sent, flood, accepted, failed_handshakes, heard, silent;
    // Of the server's thread.
    gs_status refused_item;  // the last
    gs_rpc_call_handle *held[MAX_HELD], *streams[MAX_HELD];
} rpc_fixture;

// `endpoint`: what to bind; the context is made when fixture->context is NULL.
void start_fixture(rpc_fixture *fixture, const char *endpoint, uint32_t coordinator_epoch);
void stop_server(rpc_fixture *fixture);
void stop_fixture(rpc_fixture *fixture);  // the context too
gs_rpc_client *open_client(rpc_fixture *fixture);

// Waits until the counter has this value; fails the test after 20 s.
void wait_for_count(atomic_int *counter, int value);
void wait_for_total(atomic_ullong *counter, unsigned long long value);

#define WAIT gs_deadline_in_seconds(60)

#endif
