// In place of rpc/server: requests come from the record, answers are kept.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/u64_map.h"
#include "rpc/server/rpc_server.h"
#include "tests/traces/stage_world.h"

struct gs_rpc_call_entry {
    uint64_t number;
    gs_method method;
    void *data;
    bool open, closed;
    int64_t num_items;
};

struct gs_rpc_server {
    gs_rpc_server_options options;
    gs_u64_map calls;  // all of the record
};

static gs_rpc_server *server;

gs_status gs_rpc_server_open(gs_rpc_server **out, gs_rpc_context *context,
                             const gs_rpc_server_options *options) {
    (void)context;
    server = calloc(1, sizeof *server);
    if (!server) return gs_error(GS_RESOURCE_EXHAUSTED, "stage: out of memory");
    server->options = *options;
    *out = server;
    return gs_ok();
}

// Calls outlive it: readers of logs are answered after.
void gs_rpc_server_close(gs_rpc_server *closed) { (void)closed; }

void stage_forget_calls(void) {
    if (!server) return;
    for (size_t i = 0; i < server->calls.num_slots; i++) {
        if (server->calls.slots[i].key) free(server->calls.slots[i].value);
    }
    gs_u64_map_release(&server->calls);
    free(server);
    server = NULL;
}

const char *gs_rpc_server_endpoint(const gs_rpc_server *of, int index) {
    (void)of;
    return index == 0 ? "tcp://127.0.0.1:1" : "inproc://stage";
}

void gs_rpc_server_get_stats(const gs_rpc_server *of, gs_rpc_server_stats *stats) {
    (void)of;
    *stats = (gs_rpc_server_stats){0};
}

static gs_method method_of(const char *name) {
    for (int i = 1; i < GS_NUM_METHODS; i++) {
        const gs_method_info *info = gs_method_info_of((gs_method)i);
        if (info && strcmp(info->name, name) == 0) return (gs_method)i;
    }
    return GS_METHOD_NONE;
}

static uint64_t u64_of(const gs_json *line, const char *key) {
    return strtoull(gs_json_string_or(line, key, "0"), NULL, 10);
}

static gs_rpc_call_handle *open_call(uint64_t number, gs_method method) {
    gs_rpc_call_handle *call = calloc(1, sizeof *call);
    if (!call || !gs_u64_map_set(&server->calls, number, call)) abort();
    call->number = number;
    call->method = method;
    call->open = true;
    return call;
}

static void take_request(const gs_json *line) {
    gs_method method = method_of(gs_json_string_or(line, "method", ""));
    gs_rpc_handler handler = server->options.handlers[method];
    uint64_t number = (uint64_t)gs_json_int_or(line, "call", 0);
    gs_rpc_peer peer = {.connection = (uint64_t)gs_json_int_or(line, "connection", 0),
                        .incarnation = u64_of(line, "incarnation"),
                        .job = u64_of(line, "job"),
                        .token = gs_json_get(line, "token") ? u64_of(line, "token") : 0,
                        .generation = (uint32_t)gs_json_int_or(line, "generation", 0),
                        .coordinator_epoch = (uint32_t)gs_json_int_or(line, "coordinator_epoch", 0)};
    if (!handler) return;
    handler(server->options.ctx, number ? open_call(number, method) : NULL, &peer,
            gs_json_get(line, "body"));
}

static void lose_call(const gs_json *line) {
    gs_rpc_call_handle *call =
        gs_u64_map_get(&server->calls, (uint64_t)gs_json_int_or(line, "call", 0));
    if (!call || !call->open) return;
    call->closed = gs_json_bool_or(line, "closed", true);
    server->options.call_gone(server->options.ctx, call);
    call->open = false;
}

gs_status gs_rpc_server_turn(gs_rpc_server *of, int wake_fd, gs_deadline deadline) {
    (void)of;
    (void)wake_fd;
    (void)deadline;
    for (size_t i = stage.first; i < stage.end; i++) {
        const trace_line *line = &stage.file->lines[i];
        if (line->kind != TRACE_REQUEST && line->kind != TRACE_GONE) continue;
        stage_reach(i);
        if (line->kind == TRACE_REQUEST) take_request(line->json);
        else lose_call(line->json);
    }
    return gs_ok();
}

// As its reader would have it. Takes the body.
static gs_json *read_again(gs_json *body) {
    char *text;
    size_t bytes;
    gs_json *read = NULL;
    gs_status status = body ? gs_json_encode(&text, &bytes, body, false) : gs_error(GS_UNAVAILABLE, "no body");
    gs_json_release(body);
    if (status.code) return NULL;
    status = gs_json_parse(&read, text, bytes);
    if (status.code) fprintf(stderr, "an answer is no JSON: %s\n", status.message);
    free(text);
    return read;
}

void gs_rpc_reply(gs_rpc_call_handle *call, gs_status status, gs_json *body) {
    gs_json *line = gs_json_new_object();
    gs_json_set_string(line, "out", "answer");
    gs_json_set_int(line, "call", (int64_t)call->number);
    gs_json_set_int(line, "code", status.code);
    if (status.code) {
        gs_json *error = gs_json_new_object();
        gs_json_set_string(error, "message", status.message);
        gs_json_set(error, "details", body);
        body = error;
    }
    gs_json_set(line, "body", read_again(body));
    if (!call->open) gs_json_set_bool(line, "answered_twice", true);
    call->open = false;
    call->data = NULL;
    stage_leave(line);
}

void gs_rpc_end(gs_rpc_call_handle *call, gs_status status) { gs_rpc_reply(call, status, NULL); }

// Whether the peer took it is told by the record too.
static bool was_sent(const gs_rpc_call_handle *call) {
    int64_t index = 0;
    for (size_t i = 0; i < stage.file->count; i++) {
        const trace_line *line = &stage.file->lines[i];
        if (line->kind != TRACE_OUT || gs_json_bool_or(line->json, "sent", true)) continue;
        if ((uint64_t)gs_json_int_or(line->json, "call", 0) != call->number) continue;
        for (size_t k = 0; k < i; k++) {
            const gs_json *before = stage.file->lines[k].json;
            index += stage.file->lines[k].kind == TRACE_OUT && gs_json_get(before, "sent") &&
                     (uint64_t)gs_json_int_or(before, "call", 0) == call->number;
        }
        return call->num_items < index;
    }
    return true;
}

gs_status gs_rpc_item(gs_rpc_call_handle *call, gs_json *item) {
    gs_json *line = gs_json_new_object();
    bool sent = call->open && was_sent(call);
    gs_json_set_string(line, "out", "item");
    gs_json_set_int(line, "call", (int64_t)call->number);
    gs_json_set_bool(line, "sent", sent);
    gs_json_set(line, "body", read_again(item));
    call->num_items++;
    stage_leave(line);
    return sent ? gs_ok() : gs_error(GS_UNAVAILABLE, "the reader is too slow");
}

gs_status gs_rpc_item_text(gs_rpc_call_handle *call, const char *text, size_t bytes) {
    gs_json *item = NULL;
    gs_status status = gs_json_parse(&item, text, bytes);
    return status.code ? status : gs_rpc_item(call, item);
}

bool gs_rpc_call_was_closed(const gs_rpc_call_handle *call) { return call->closed; }

void *gs_rpc_call_data(const gs_rpc_call_handle *call) { return call->data; }

void gs_rpc_call_set_data(gs_rpc_call_handle *call, void *data) { call->data = data; }
