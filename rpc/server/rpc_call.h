// A call that came in, as its handler sees it: an object until it is ended, at once or later (an
// exchange waits for all ranks). Of the server's thread.
#ifndef RPC_SERVER_RPC_CALL_H
#define RPC_SERVER_RPC_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "rpc/json/json.h"
#include "rpc/server/rpc_peer.h"

typedef struct gs_rpc_call_entry gs_rpc_call_handle;

// `request` is borrowed for the call of the handler; NULL when the body was empty. One-way messages
// come with call == NULL and their sender in `peer`.
typedef void (*gs_rpc_handler)(void *ctx, gs_rpc_call_handle *call, const gs_rpc_peer *peer,
                               const gs_json *request);

// A one-way message whose body is a record, no JSON; borrowed. An error is counted as what is no message.
typedef gs_status (*gs_rpc_record_handler)(void *ctx, const gs_rpc_peer *peer, const void *record, size_t bytes);

// Ends a call. `body` is taken; NULL is an empty one. With an error, `body` may hold details.
void gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body);
// One item of a stream method; the call stays. `item` is taken, and dropped on an error. UNAVAILABLE: the peer is gone
// or too slow (its queue is full). OUT_OF_RANGE: no message holds it.
GS_NODISCARD gs_status gs_rpc_item(gs_rpc_call_handle *call, gs_json *item);
// The same of one that is encoded already: one text for many readers. Borrowed.
GS_NODISCARD gs_status gs_rpc_item_text(gs_rpc_call_handle *call, const char *text, size_t bytes);
// Ends a stream.
void gs_rpc_end(gs_rpc_call_handle *call, gs_status status);

// For whoever is told that the caller of a stream is gone: its end of the connection was closed, as the end of its
// process does, too; nothing of the kind can be said of one that fell silent.
bool gs_rpc_call_was_closed(const gs_rpc_call_handle *call);

void *gs_rpc_call_data(const gs_rpc_call_handle *call);  // the keeper's own pointer
void gs_rpc_call_set_data(gs_rpc_call_handle *call, void *data);

#endif
