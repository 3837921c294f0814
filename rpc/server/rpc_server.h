// The coordinator's side: a method table, dispatch on one thread, replies now or later.
//
// The thread that calls gs_rpc_server_turn owns the server and everything that handlers touch: no
// locks. A call is an object until it is ended; it may be kept (an exchange waits for all ranks).
// Control messages are served before API methods (see the method table) within a turn.
#ifndef RPC_SERVER_RPC_SERVER_H
#define RPC_SERVER_RPC_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"
#include "rpc/schema/messages.h"

typedef struct gs_rpc_server gs_rpc_server;
typedef struct gs_rpc_call_handle gs_rpc_call_handle;

// `request` is borrowed for the call of the handler; NULL when the body was empty. One-way messages
// come with call == NULL and their sender in `peer`.
typedef struct gs_rpc_peer {
    uint64_t connection;  // grows with each connection, never reused
    uint64_t incarnation, job;
    uint32_t generation, coordinator_epoch;  // as in the header of this message
} gs_rpc_peer;

typedef void (*gs_rpc_handler)(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                               const gs_json *request);

typedef struct gs_rpc_server_options {
    const char *endpoints[4];    // "tcp://127.0.0.1:8471", "inproc://…"; port 0 or * picks one
    uint32_t coordinator_epoch;  // goes out in every header
    gs_rpc_handler handlers[GS_NUM_METHODS];  // NULL: UNIMPLEMENTED
    void *ctx;
    // A call that the handler kept was cancelled, its deadline passed, or its peer went away:
    // forget it, do not end it. A lost connection ends its streams at once; a kept call stays for
    // 30 s or its deadline, because its client may come back for the answer. Not called from within
    // a handler, nor from gs_rpc_server_close. May be NULL.
    void (*call_gone)(void *ctx, gs_rpc_call_handle *call);
    // A connection was closed by the peer or fell silent. May be NULL.
    void (*peer_gone)(void *ctx, const gs_rpc_peer *peer);
} gs_rpc_server_options;

// FAILED_PRECONDITION when an address is in use.
GS_NODISCARD gs_status gs_rpc_server_open(gs_rpc_server **out, gs_rpc_context *context,
                                          const gs_rpc_server_options *options);
void gs_rpc_server_close(gs_rpc_server *server);
// The address that endpoint number `index` really has.
const char *gs_rpc_server_endpoint(const gs_rpc_server *server, int index);

// Waits for input up to the deadline (or until `wake_fd`, -1 for none, is readable), then serves
// what is there, bounded so that timers of the caller get their turn.
GS_NODISCARD gs_status gs_rpc_server_turn(gs_rpc_server *server, int wake_fd, gs_deadline deadline);

// Ends a call. `body` is taken; NULL is an empty one. With an error, `body` may hold details.
void gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body);
// One item of a stream method; the call stays. `item` is taken. False when the peer is gone or too
// slow (its queue is full): the item was dropped.
bool gs_rpc_item(gs_rpc_call_handle *call, gs_json *item);
// Ends a stream.
void gs_rpc_end(gs_rpc_call_handle *call, gs_status status);
const gs_rpc_peer *gs_rpc_call_peer(const gs_rpc_call_handle *call);
void *gs_rpc_call_data(const gs_rpc_call_handle *call);  // the keeper's own pointer
void gs_rpc_call_set_data(gs_rpc_call_handle *call, void *data);

typedef struct gs_rpc_server_stats {
    uint64_t received[GS_NUM_METHODS], sent;
    uint64_t dropped_malformed, dropped_stale, dropped_slow, dropped_flood, repeated;
    size_t connections, calls_open;
} gs_rpc_server_stats;
void gs_rpc_server_get_stats(const gs_rpc_server *server, gs_rpc_server_stats *stats);

#endif
