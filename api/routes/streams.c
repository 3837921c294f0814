// Handlers whose answers go on: logs, and live events.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/listener.h"
#include "api/http/problem.h"
#include "api/live/log_stream.h"
#include "api/live/sse.h"
#include "api/routes/handlers.h"

enum { DEFAULT_INTERVAL_MS = 500 };

// Whose a stream is: the token's, where nobody is asked for one on purpose the address's.
static void name_holder(char holder[GS_STREAM_HOLDER_BYTES], const gs_route_call *call) {
    char neighbourhood[GS_HTTP_PEER_LEN] = "";
    if (!*call->caller->id && call->caller->is_exempt) gs_http_peer_neighbourhood(neighbourhood, call->request->from);
    snprintf(holder, GS_STREAM_HOLDER_BYTES, "%s%.47s", call->caller->id, neighbourhood);
}

static bool take_slot(gs_route_call *call, char holder[GS_STREAM_HOLDER_BYTES]) {
    name_holder(holder, call);
    if (gs_stream_slots_take(call->services->slots, holder)) return true;
    gs_api_metrics_refuse(call->services->metrics, "too_many_streams");
    gs_problem_answer_code(call->response, call->request->id, "too_many_streams",
                           "as many streams are open as this server allows, or as it allows one token or address");
    return false;
}

void gs_handle_logs(gs_route_call *call) {
    const char *follow_text = gs_http_query(call->request, "follow");
    bool follow = follow_text && strcmp(follow_text, "false") != 0;
    gs_json *reply = NULL;
    // The first batch is read here, so that errors are answered as errors.
    if (!gs_route_call_rpc(call, GS_READ_LOGS, call->args, &reply)) return;
    char holder[GS_STREAM_HOLDER_BYTES] = "";
    if (follow && !take_slot(call, holder)) {
        gs_json_release(reply);
        return;
    }
    gs_log_stream_options options = {.client = call->services->client,
                                     .hubs = call->services->hubs,
                                     .slots = call->services->slots,
                                     .tokens = call->services->tokens,
                                     .sessions = call->services->sessions,
                                     .caller = *call->caller,
                                     .request = call->args,
                                     .first = reply,
                                     .follow = follow,
                                     .as_json = call->representation == 1,
                                     .http_client = gs_http_request_client(call->request)};
    memcpy(options.holder, holder, sizeof holder);
    gs_status status = gs_log_stream_open(&call->response->stream, &options);
    gs_json_release(reply);
    if (status.code) {
        gs_problem_answer_code(call->response, call->request->id, "internal", "%s",
                               status.message);
        return;
    }
    call->response->status = 200;
    gs_http_set_header(call->response, "Content-Type",
                       options.as_json ? "application/x-ndjson" : "text/plain; charset=utf-8");
    gs_http_set_header(call->response, "Cache-Control", "no-store");
    gs_http_set_header(call->response, "X-Accel-Buffering", "no");
}

static void open_events(gs_route_call *call, const char *job, bool only_events) {
    char holder[GS_STREAM_HOLDER_BYTES];
    if (!take_slot(call, holder)) return;
    const char *interval = gs_http_query(call->request, "interval_ms");
    gs_sse_options options = {.hubs = call->services->hubs,
                              .client = call->services->client,
                              .metrics = call->services->metrics,
                              .slots = call->services->slots,
                              .tokens = call->services->tokens,
                              .sessions = call->services->sessions,
                              .caller = *call->caller,
                              .job = job,
                              .only_events = only_events,
                              .interval_ms = interval ? atoll(interval) : DEFAULT_INTERVAL_MS,
                              .last_event_id = gs_http_header(call->request, "Last-Event-ID"),
                              .http_client = gs_http_request_client(call->request)};
    memcpy(options.holder, holder, sizeof holder);
    bool nothing_left = false;
    gs_status status = gs_sse_open(&call->response->stream, &nothing_left, &options);
    if (status.code == GS_RESOURCE_EXHAUSTED) {
        gs_problem_answer_code(call->response, call->request->id, "too_many_streams", "%s",
                               status.message);
        return;
    }
    if (status.code) {
        gs_problem_answer_status(call->response, call->request->id, status, NULL);
        return;
    }
    gs_http_set_header(call->response, "Cache-Control", "no-store");
    call->response->status = nothing_left ? 204 : 200;
    if (nothing_left) return;
    gs_http_set_header(call->response, "Content-Type", "text/event-stream");
    gs_http_set_header(call->response, "X-Accel-Buffering", "no");
}

// Names and prefixes become the id, and errors are answered before a stream begins.
static void open_job_events(gs_route_call *call, bool only_events) {
    gs_json *request = gs_json_new_object(), *job = NULL;
    gs_json_set_string(request, "job", gs_route_param(call->match, "job"));
    if (gs_route_call_rpc(call, GS_GET_JOB, request, &job))
        open_events(call, gs_json_string_or(job, "id", ""), only_events);
    gs_json_release(request);
    gs_json_release(job);
}

void gs_handle_stream(gs_route_call *call) {
    open_job_events(call, false);
}

void gs_handle_events(gs_route_call *call) {
    if (call->representation == 0)
        gs_handle_forward(call);
    else if (*gs_route_param(call->match, "job"))
        open_job_events(call, true);
    else
        open_events(call, "", true);
}
