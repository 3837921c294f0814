// The lines of a job's ranks as an answer that goes on: batches of ReadLogs, one behind the other.
// A follower stays until the job has ended, also across restarts of the coordinator.
#ifndef API_LIVE_LOG_STREAM_H
#define API_LIVE_LOG_STREAM_H

#include <stdbool.h>

#include "api/access/token_store.h"
#include "api/http/http_server.h"
#include "api/live/event_hub.h"
#include "api/live/stream_slots.h"
#include "rpc/client/rpc_client.h"
#include "rpc/json/json.h"

typedef struct gs_log_stream_options {
    gs_rpc_client *client;
    gs_event_hubs *hubs;     // when they stop, the stream ends
    gs_stream_slots *slots;  // of a follower: one is taken already; the stream gives it back
    char holder[GS_STREAM_HOLDER_BYTES];
    gs_token_store *tokens;
    gs_sessions *sessions;
    gs_caller caller;        // the stream ends with his token
    const gs_json *request;  // of ReadLogs, copied
    const gs_json
        *first;  // the answer to it, which the caller has read: errors are answered as such
    bool follow, as_json;
    gs_http_client http_client;
} gs_log_stream_options;

GS_NODISCARD gs_status gs_log_stream_open(gs_http_stream *out,
                                          const gs_log_stream_options *options);

#endif
