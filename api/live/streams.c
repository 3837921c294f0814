// Handlers whose answers go on: logs, and live events.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/http/problem.h"
#include "api/routes/route_call.h"

enum {
    LOG_RPC_MS = 15000,
    LOG_WAIT_SECONDS = 2,  // also what a follower may delay the end of the server
    LOG_RETRY_MS = 500,
    LOG_PATIENCE_SECONDS = 60,
    DEFAULT_INTERVAL_MS = 500
};

// One reader. Owned by its connection's thread.
typedef struct log_stream {
    const gs_api_services *services;
    gs_json *request;  // of the next ReadLogs
    bool follow, as_json, ended;
    gs_http_client client;
    gs_strbuf out;  // out_at bytes of it have been sent
    size_t out_at;
    int64_t give_up_at_ns;  // when the coordinator stays silent; 0: it talks
} log_stream;

static void write_record(log_stream *stream, const gs_json *record) {
    if (stream->as_json) {
        char *text = NULL;
        gs_status status = gs_json_encode(&text, NULL, record, false);
        if (!status.code) gs_strbuf_printf(&stream->out, "%s\n", text);
        free(text);
        return;
    }
    gs_strbuf_printf(&stream->out, "[r%lld %s] %s\n", (long long)gs_json_int_or(record, "rank", 0),
                     gs_json_string_or(record, "host", gs_json_string_or(record, "worker", "?")),
                     gs_json_string_or(record, "text", ""));
}

// Writes a batch, and makes the request go on behind it.
static void take_batch(log_stream *stream, const gs_json *reply) {
    const gs_json *records = gs_json_get(reply, "records"), *cursor = gs_json_get(reply, "cursor");
    size_t num_records = gs_json_count(records);
    for (size_t i = 0; i < num_records; i++) write_record(stream, gs_json_at(records, i));
    if (cursor) gs_json_set(stream->request, "since", gs_json_copy(cursor));
    gs_json_remove(stream->request, "tail");  // said once, it chose where to begin
    if (num_records == 0) stream->ended = !stream->follow || gs_json_bool_or(reply, "ended", false);
    // Without a cursor the same records would come for ever.
    if (num_records > 0 && !cursor) stream->ended = true;
    if (stream->follow) gs_json_set_int(stream->request, "wait_seconds", LOG_WAIT_SECONDS);
}

static void read_batch(log_stream *stream) {
    gs_json *reply = NULL;
    gs_status status = gs_rpc_call(stream->services->client, GS_READ_LOGS, stream->request, &reply,
                                   gs_deadline_in_ms(LOG_RPC_MS));
    if (!status.code) {
        stream->give_up_at_ns = 0;
        take_batch(stream, reply);
    } else if (!stream->follow ||
               (status.code != GS_UNAVAILABLE && status.code != GS_DEADLINE_EXCEEDED)) {
        stream->ended = true;
    } else {
        // The coordinator may be restarting: the cursor survives that.
        int64_t now_ns = gs_now_ns();
        if (!stream->give_up_at_ns)
            stream->give_up_at_ns = now_ns + LOG_PATIENCE_SECONDS * GS_NS_PER_SEC;
        if (now_ns > stream->give_up_at_ns)
            stream->ended = true;
        else
            gs_sleep_ns(LOG_RETRY_MS * GS_NS_PER_MS);
    }
    gs_json_release(reply);
}

static ssize_t read_logs(void *ctx, char *buffer, size_t max_bytes) {
    log_stream *stream = ctx;
    while (stream->out_at == stream->out.len) {
        if (stream->ended || gs_strbuf_failed(&stream->out) ||
            gs_http_client_gone(stream->client) || gs_event_hubs_stopping(stream->services->hubs))
            return GS_HTTP_STREAM_END;
        gs_strbuf_clear(&stream->out);
        stream->out_at = 0;
        read_batch(stream);
    }
    size_t bytes = stream->out.len - stream->out_at;
    if (bytes > max_bytes) bytes = max_bytes;
    memcpy(buffer, stream->out.text + stream->out_at, bytes);
    stream->out_at += bytes;
    return (ssize_t)bytes;
}

static void close_logs(void *ctx) {
    log_stream *stream = ctx;
    if (stream->follow) gs_stream_slots_give(stream->services->slots);
    gs_json_release(stream->request);
    gs_strbuf_release(&stream->out);
    free(stream);
}

static bool take_slot(gs_route_call *call) {
    if (gs_stream_slots_take(call->services->slots)) return true;
    gs_api_metrics_refuse(call->services->metrics, "too_many_streams");
    gs_problem_answer_code(call->response, call->request->id, "too_many_streams",
                           "as many streams are open as this server allows");
    return false;
}

void gs_handle_logs(gs_route_call *call) {
    const char *follow_text = gs_http_query(call->request, "follow");
    bool follow = follow_text && strcmp(follow_text, "false") != 0;
    gs_json *reply = NULL;
    // The first batch is read here, so that errors are answered as errors.
    if (!gs_route_call_rpc(call, GS_READ_LOGS, call->args, &reply)) return;
    if (follow && !take_slot(call)) {
        gs_json_release(reply);
        return;
    }
    log_stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        if (follow) gs_stream_slots_give(call->services->slots);
        gs_json_release(reply);
        gs_problem_answer_code(call->response, call->request->id, "internal", "out of memory");
        return;
    }
    *stream = (log_stream){.services = call->services,
                           .request = gs_json_copy(call->args),
                           .follow = follow,
                           .as_json = call->representation == 1,
                           .client = gs_http_request_client(call->request)};
    take_batch(stream, reply);
    gs_json_release(reply);
    call->response->status = 200;
    gs_http_set_header(call->response, "Content-Type",
                       stream->as_json ? "application/x-ndjson" : "text/plain; charset=utf-8");
    gs_http_set_header(call->response, "Cache-Control", "no-store");
    gs_http_set_header(call->response, "X-Accel-Buffering", "no");
    call->response->stream =
        (gs_http_stream){.read = read_logs, .close = close_logs, .ctx = stream};
}

static void open_events(gs_route_call *call, const char *job, bool only_events) {
    if (!take_slot(call)) return;
    const char *interval = gs_http_query(call->request, "interval_ms");
    gs_sse_options options = {.hubs = call->services->hubs,
                              .client = call->services->client,
                              .metrics = call->services->metrics,
                              .slots = call->services->slots,
                              .job = job,
                              .only_events = only_events,
                              .interval_ms = interval ? atoll(interval) : DEFAULT_INTERVAL_MS,
                              .last_event_id = gs_http_header(call->request, "Last-Event-ID"),
                              .http_client = gs_http_request_client(call->request)};
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
