// A timeline document as a trace-event file, which Perfetto and its kin open. A pure function.
//
// A process is a rank. Lanes: 1 forward, 2 backward, 3 reduction, 4 optimizer, 5 data, 6 exposed (waiting
// in finish, commit), 7 others (checkpoint, evaluate); 8 the whole step. Reductions that overlap get lanes
// 31, 32 … of their own, so that what lies on a lane is nested or disjoint. Each bucket is one complete
// event a step and rank, from its first byte to its end, with an instant where it became ready, a flow
// from there, and its bytes in a counter of bytes in flight from launch to end.
#ifndef API_RENDER_TRACE_EVENTS_H
#define API_RENDER_TRACE_EVENTS_H

#include "core/strbuf.h"
#include "rpc/json/json.h"

void gs_trace_events_write(gs_strbuf *out, const gs_json *timeline);

#endif
