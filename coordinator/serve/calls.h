// Calls that wait for the engine, as numbers: which line leads to who made them. Loop thread.
//
// Who is too slow to be told something has lost the line: an order that was skipped would leave it and the engine of
// two minds. Its stream ends, and it comes back for all that it is owed.
#ifndef COORDINATOR_SERVE_CALLS_H
#define COORDINATOR_SERVE_CALLS_H

#include <stdbool.h>

#include "coordinator/model/call.h"
#include "core/status.h"
#include "core/u64_map.h"
#include "rpc/server/rpc_call.h"

typedef struct gs_calls {
    gs_u64_map entries;  // by number
    gs_call last;
    // A caller has gone, or its stream was ended here: nobody waits at this number any more. `was_closed`: at its
    // end, as the end of its process does; not by silence.
    void (*gone)(void *ctx, gs_call call, bool was_closed);
    void *ctx;
} gs_calls;

// Every call handed out is answered, ended, or gone once.
gs_call gs_calls_keep(gs_calls *calls, gs_rpc_call_handle *line, bool is_stream);  // line NULL: 0
// Those for 0 and for who is gone do nothing but release what they take.
void gs_calls_reply(gs_calls *calls, gs_call call, gs_status status, gs_json *body);  // takes body
void gs_calls_end(gs_calls *calls, gs_call call, gs_status status);
// Takes item. UNAVAILABLE: it did not get through, and its stream has ended. OUT_OF_RANGE: no message holds it, and the
// stream goes on without it.
GS_NODISCARD gs_status gs_calls_send(gs_calls *calls, gs_call call, gs_json *item);
// What decides nothing may be lost: false when it is. Takes item.
bool gs_calls_mention(gs_calls *calls, gs_call call, gs_json *item);
// The coordinator stops: streams end so that peers look for its next life, and calls that are held stay without an
// answer, so that they are asked again there.
void gs_calls_part(gs_calls *calls);

#endif
