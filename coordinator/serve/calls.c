#include "coordinator/serve/calls.h"

#include <stdlib.h>

#include "coordinator/model/memory.h"
#include "coordinator/observe/held.h"

typedef struct entry {
    gs_held held;
    gs_calls *calls;
    gs_call call;
    gs_rpc_call_handle *line;
    bool is_stream;
} entry;

static entry *find(const gs_calls *calls, gs_call call) {
    return call ? gs_u64_map_get(&calls->entries, call) : NULL;
}

static void forget(entry *it) {
    gs_u64_map_remove(&it->calls->entries, it->call);
    free(it);
}

static void caller_gone(void *owner, gs_rpc_call_handle *line) {
    entry *it = owner;
    gs_calls *calls = it->calls;
    gs_call call = it->call;
    forget(it);
    calls->gone(calls->ctx, call, gs_rpc_call_was_closed(line));
}

gs_call gs_calls_keep(gs_calls *calls, gs_rpc_call_handle *line, bool is_stream) {
    if (!line) return 0;
    entry *it = gs_model_alloc(1, sizeof *it);
    *it = (entry){.calls = calls, .call = ++calls->last, .line = line, .is_stream = is_stream};
    if (!gs_u64_map_set(&calls->entries, it->call, it)) abort();
    gs_held_keep(&it->held, line, caller_gone, it);
    return it->call;
}

void gs_calls_reply(gs_calls *calls, gs_call call, gs_status status, gs_json *body) {
    entry *it = find(calls, call);
    if (!it) {
        gs_json_release(body);
        return;
    }
    gs_rpc_call_handle *line = it->line;
    forget(it);
    gs_rpc_reply(line, status, body);
}

void gs_calls_end(gs_calls *calls, gs_call call, gs_status status) {
    gs_calls_reply(calls, call, status, NULL);
}

bool gs_calls_mention(gs_calls *calls, gs_call call, gs_json *item) {
    const entry *it = find(calls, call);
    if (it) return !gs_rpc_item(it->line, item).code;
    gs_json_release(item);
    return false;
}

gs_status gs_calls_send(gs_calls *calls, gs_call call, gs_json *item) {
    const entry *it = find(calls, call);
    if (!it) {
        gs_json_release(item);
        return gs_ok();
    }
    gs_status status = gs_rpc_item(it->line, item);
    if (!status.code || status.code == GS_OUT_OF_RANGE) return status;
    gs_calls_end(calls, call, gs_error(GS_UNAVAILABLE, "too slow to be told anything"));
    calls->gone(calls->ctx, call, false);
    return status;
}

void gs_calls_part(gs_calls *calls) {
    for (size_t i = 0; i < calls->entries.num_slots; i++) {
        entry *it = calls->entries.slots[i].value;
        if (!calls->entries.slots[i].key) continue;
        if (it->is_stream) gs_rpc_end(it->line, gs_error(GS_UNAVAILABLE, "the coordinator stops"));
        else gs_rpc_call_set_data(it->line, NULL);
        free(it);
    }
    gs_u64_map_release(&calls->entries);
}
