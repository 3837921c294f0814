// A channel to the coordinator: any thread calls, one thread owns the socket.
//
// Calls have a deadline and end with a gRPC code. A request is repeated with the same sequence
// number until it is answered, also across a reconnect; the server answers a repeat with the first
// answer, so a call runs once. Connection loss ends streams with UNAVAILABLE; calls wait for the
// reconnect within their deadline.
#ifndef RPC_CLIENT_RPC_CLIENT_H
#define RPC_CLIENT_RPC_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "core/clock.h"
#include "core/status.h"
#include "rpc/client/rpc_identity.h"
#include "rpc/json/json.h"
#include "rpc/schema/messages.h"
#include "rpc/wire/rpc_context.h"

typedef struct gs_rpc_client gs_rpc_client;
typedef struct gs_rpc_stream gs_rpc_stream;

typedef struct gs_rpc_client_options {
    const char *endpoint;  // "tcp://127.0.0.1:8471", "inproc://gradsync-control"
    uint64_t job;          // 0: none
    uint64_t incarnation;  // 0: drawn
    uint64_t launch_token;  // of a trainer, shown with each message; 0: none
    const char *key_path;      // a key file (rpc/keys/key_file.h), read anew for each connection; NULL, "": none is shown
    gs_rpc_key_source source;  // instead of a file; {0}: none
} gs_rpc_client_options;

// Returns at once; the connection is made behind, again and again.
GS_NODISCARD gs_status gs_rpc_client_open(gs_rpc_client **out, gs_rpc_context *context,
                                          const gs_rpc_client_options *options);
void gs_rpc_client_close(gs_rpc_client *client);  // waiting calls end with CANCELLED
bool gs_rpc_client_connected(const gs_rpc_client *client);
gs_rpc_refusal gs_rpc_client_refusal(const gs_rpc_client *client);
// Goes into the header of what is sent from now on.
void gs_rpc_client_set_generation(gs_rpc_client *client, uint32_t generation);

// `request` may be NULL (empty body). On success *reply (may be NULL as an argument) is the
// caller's. On an error that the server sent, *reply holds its details or NULL.
GS_NODISCARD gs_status gs_rpc_call(gs_rpc_client *client, gs_method method, const gs_json *request,
                                   gs_json **reply, gs_deadline deadline);
// The same, for who hands the answer on: *text (free()) is what the server encoded, NULL of an empty answer.
GS_NODISCARD gs_status gs_rpc_call_text(gs_rpc_client *client, gs_method method, const gs_json *request,
                                        char **text, size_t *bytes, gs_json **details, gs_deadline deadline);
// One-way; dropped when not connected.
void gs_rpc_send(gs_rpc_client *client, gs_method method, const gs_json *request);
// The same of a method whose body is no JSON; the record is copied.
void gs_rpc_send_record(gs_rpc_client *client, gs_method method, const void *record, size_t bytes);

// A server stream. Not shared between threads.
GS_NODISCARD gs_status gs_rpc_stream_open(gs_rpc_stream **out, gs_rpc_client *client,
                                          gs_method method, const gs_json *request);
// The next item (the caller's). DEADLINE_EXCEEDED: nothing came yet, the stream lives. Ok with
// *item NULL: a clean end. Anything else: the end, with its status (UNAVAILABLE: connection lost).
GS_NODISCARD gs_status gs_rpc_stream_next(gs_rpc_stream *stream, gs_json **item,
                                          gs_deadline deadline);
void gs_rpc_stream_close(gs_rpc_stream *stream);  // tells the server; NULL is fine

#endif
