#include "rpc/server/rpc_call.h"

#include <errno.h>
#include <stdlib.h>

#include "rpc/server/rpc_calls.h"
#include "rpc/wire/rpc_error.h"

static void end_stream(gs_rpc_call_entry *call, gs_code code, char *answer, size_t bytes) {
    gs_rpc_calls *calls = call->table;
    if (gs_rpc_calls_send_end(calls, call, code, answer, bytes) == EAGAIN) {
        gs_rpc_calls_postpone_end(calls, call, code, answer, bytes);
        return;
    }
    free(answer);
    gs_rpc_calls_answer(calls, call, code, NULL, 0);
}

void gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body) {
    gs_code code = status.code;
    size_t bytes;
    if (call->table->audit_end) call->table->audit_end(call->table->audit, call, code, body);
    char *answer = gs_rpc_answer_encode(&bytes, &code, status.message, body);
    const gs_rpc_tap *tap = call->table->tap;
    if (tap && call->number) tap->answer(tap->ctx, call->number, code, answer, bytes);
    if (call->is_stream) {
        end_stream(call, code, answer, bytes);
        return;
    }
    // Sent before room is made for it: its own answer may be the one that is dropped.
    call->code = code;
    call->answer = answer;
    call->answer_bytes = bytes;
    gs_rpc_calls_send_answer(call->table, call);
    call->answer = NULL;
    gs_rpc_calls_answer(call->table, call, code, answer, bytes);
}

void gs_rpc_end(gs_rpc_call_handle *call, gs_status status) {
    gs_rpc_reply(call, status, NULL);
}

static gs_status send_item(gs_rpc_call_handle *call, const char *text, size_t bytes) {
    if (bytes > GS_FRAME_MAX_BODY_BYTES)
        return gs_error(GS_OUT_OF_RANGE, "%zu bytes, and a message holds %zu", bytes, GS_FRAME_MAX_BODY_BYTES);
    if (!call->connection || call->connection->lost) return gs_error(GS_UNAVAILABLE, "the reader is gone");
    gs_frame frame = {.kind = GS_FRAME_ITEM, .method = call->method, .call = call->seq};
    int error = gs_rpc_peers_send(call->table->peers, call->connection, frame, text, bytes);
    if (!error) return gs_ok();
    return gs_error(GS_UNAVAILABLE, error == EAGAIN ? "the reader is too slow" : "the reader is gone");
}

gs_status gs_rpc_item_text(gs_rpc_call_handle *call, const char *text, size_t bytes) {
    gs_status status = send_item(call, text, bytes);
    const gs_rpc_tap *tap = call->table->tap;
    if (tap) tap->item(tap->ctx, call->number, text, bytes, !status.code);
    return status;
}

gs_status gs_rpc_item(gs_rpc_call_handle *call, gs_json *item) {
    char *text = NULL;
    size_t bytes = 0;
    gs_status status = gs_json_encode(&text, &bytes, item, false);
    gs_json_release(item);
    if (!status.code) status = gs_rpc_item_text(call, text, bytes);
    free(text);
    return status;
}

bool gs_rpc_call_was_closed(const gs_rpc_call_handle *call) {
    return gs_rpc_calls_was_closed(call);
}

void *gs_rpc_call_data(const gs_rpc_call_handle *call) {
    return call->data;
}

void gs_rpc_call_set_data(gs_rpc_call_handle *call, void *data) {
    call->data = data;
}
