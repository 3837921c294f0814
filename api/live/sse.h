// Server-sent events to many browsers: a snapshot, then what the hub has, resumed by id.
#ifndef API_LIVE_SSE_H
#define API_LIVE_SSE_H

#include <stdbool.h>
#include <stdint.h>

#include "api/access/token_store.h"
#include "api/http/api_metrics.h"
#include "api/http/http_server.h"
#include "api/live/event_hub.h"
#include "api/live/stream_slots.h"
#include "core/strbuf.h"

typedef struct gs_sse_options {
    gs_event_hubs *hubs;
    gs_rpc_client *client;
    gs_api_metrics *metrics;
    gs_stream_slots *slots;     // one is taken already; the stream gives it back
    char holder[GS_STREAM_HOLDER_BYTES];
    gs_token_store *tokens;
    gs_sessions *sessions;
    gs_caller caller;           // the stream ends with his token
    const char *job;            // full id, "" for the whole cluster
    bool only_events;           // of the topics: `event` alone
    int64_t interval_ms;        // least time between two `step`
    const char *last_event_id;  // or NULL
    gs_http_client http_client;
} gs_sse_options;

// *nothing_left: the client has seen the end already, and there is no stream (204).
GS_NODISCARD gs_status gs_sse_open(gs_http_stream *out, bool *nothing_left,
                                   const gs_sse_options *options);

// "id:", "event:", and a "data:" line for each line of `data`. `id` may be NULL.
void gs_sse_write_event(gs_strbuf *out, const char *id, const char *event, const char *data);

#endif
