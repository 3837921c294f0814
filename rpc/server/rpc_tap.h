// Listens to a server: what its handlers are given and what they answer, in the order in which it
// happens. For records of a run; a listener changes nothing. Called on the server's thread.
#ifndef RPC_SERVER_RPC_TAP_H
#define RPC_SERVER_RPC_TAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/schema/messages.h"
#include "rpc/server/rpc_peer.h"

// Calls are numbered from 1 as handlers get them; a one-way message is number 0. Bodies are JSON texts,
// empty ones NULL, borrowed.
typedef struct gs_rpc_tap {
    void *ctx;
    // Before the handler runs.
    void (*request)(void *ctx, uint64_t call, gs_method method, const gs_rpc_peer *peer,
                    const char *body, size_t bytes);
    void (*gone)(void *ctx, uint64_t call, bool closed);  // rpc_call.h says what closed means
    void (*answer)(void *ctx, uint64_t call, gs_code code, const char *body, size_t bytes);
    void (*item)(void *ctx, uint64_t call, const char *body, size_t bytes, bool sent);
} gs_rpc_tap;

#endif
