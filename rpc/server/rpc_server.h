// The coordinator's side: a method table, dispatch on one thread, replies now or later.
//
// The thread that calls gs_rpc_server_turn owns the server and everything that handlers touch: no
// locks. Control messages are served before API methods (see the method table) within a turn.
#ifndef RPC_SERVER_RPC_SERVER_H
#define RPC_SERVER_RPC_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "rpc/keys/audit.h"
#include "rpc/schema/messages.h"
#include "rpc/server/key_gate.h"
#include "rpc/server/rpc_call.h"
#include "rpc/server/rpc_tap.h"
#include "rpc/wire/rpc_context.h"

typedef struct gs_rpc_server gs_rpc_server;

#define GS_RPC_MAX_ENDPOINTS 4

typedef struct gs_rpc_server_options {
    const char *endpoints[GS_RPC_MAX_ENDPOINTS];  // "tcp://127.0.0.1:8471", "inproc://…"; port 0 or
                                                  // * picks one
    bool guarded[GS_RPC_MAX_ENDPOINTS];  // who comes there shows a key; needs a gate
    gs_key_gate *gate;                   // borrowed until close; may be NULL
    uint32_t coordinator_epoch;               // goes out in every header
    gs_rpc_handler handlers[GS_NUM_METHODS];  // NULL: UNIMPLEMENTED
    gs_rpc_record_handler record_handlers[GS_NUM_METHODS];  // of methods whose body is no JSON
    void *ctx;
    // A call that the handler kept was cancelled, its deadline passed, or its peer went away:
    // forget it, do not end it. A lost connection ends its streams at once; a kept call stays for
    // 30 s or its deadline, because its client may come back for the answer. Not called from within
    // a handler, nor from gs_rpc_server_close. May be NULL.
    void (*call_gone)(void *ctx, gs_rpc_call_handle *call);
    int pings_a_second;     // of all clients together; 0: GS_PINGS_A_SECOND
    const gs_rpc_tap *tap;  // borrowed until close; may be NULL
    gs_audit *audit;        // of calls that change something, and of refused ones; borrowed until close; may be NULL
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

typedef struct gs_rpc_server_stats {
    uint64_t received[GS_NUM_METHODS], sent;
    uint64_t dropped_malformed, dropped_stale, dropped_slow, dropped_flood, repeated;
    uint64_t refused_full;  // requests: too many wait, or too much
    uint64_t refused_open;  // calls: their peer has too many open
    uint64_t refused_connections, forgotten_sessions;  // there were too many of those that are, or that are absent
    uint64_t unkept;  // answers that are not there any more if they are asked for again: too many were kept
    uint64_t refused;  // calls that the caller's key does not allow
    uint64_t revoked;  // connections whose keys ended
    uint64_t cut;   // ends of streams that were sent without what they say: too much of them waits
    uint64_t lost;  // connections that the peer closed, or that fell silent
    uint64_t accepted, failed_handshakes;  // connections by TCP, whoever made them; of which nothing came
    size_t heard, silent;  // of those that are open, who have said something that counts, and who have not
    size_t connections, calls_open;
} gs_rpc_server_stats;
void gs_rpc_server_get_stats(const gs_rpc_server *server, gs_rpc_server_stats *stats);

#endif
