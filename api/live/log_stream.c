#include "api/live/log_stream.h"

#include <stdlib.h>
#include <string.h>

enum {
    LOG_RPC_MS = 15000,
    LOG_WAIT_SECONDS = 2,  // also what a follower may delay the end of the server
    LOG_RETRY_MS = 500,
    LOG_PATIENCE_SECONDS = 60
};

// One reader. Owned by its connection's thread.
typedef struct log_stream {
    gs_log_stream_options options;
    gs_json *request;  // of the next ReadLogs
    bool ended;
    gs_strbuf out;  // out_at bytes of it have been sent
    size_t out_at;
    int64_t give_up_at_ns;  // when the coordinator stays silent; 0: it talks
} log_stream;

static void write_record(log_stream *stream, const gs_json *record) {
    if (stream->options.as_json) {
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
    if (num_records == 0)
        stream->ended = !stream->options.follow || gs_json_bool_or(reply, "ended", false);
    // Without a cursor the same records would come for ever.
    if (num_records > 0 && !cursor) stream->ended = true;
    if (stream->options.follow) gs_json_set_int(stream->request, "wait_seconds", LOG_WAIT_SECONDS);
}

static void read_batch(log_stream *stream) {
    gs_json *reply = NULL;
    gs_status status = gs_rpc_call(stream->options.client, GS_READ_LOGS, stream->request, &reply,
                                   gs_deadline_in_ms(LOG_RPC_MS));
    if (!status.code) {
        stream->give_up_at_ns = 0;
        take_batch(stream, reply);
    } else if (!stream->options.follow ||
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
            gs_http_client_gone(stream->options.http_client) ||
            gs_event_hubs_stopping(stream->options.hubs) ||
            !gs_token_store_admits_still(stream->options.tokens, stream->options.sessions, &stream->options.caller))
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
    if (stream->options.follow) gs_stream_slots_give(stream->options.slots, stream->options.holder);
    gs_json_release(stream->request);
    gs_strbuf_release(&stream->out);
    free(stream);
}

gs_status gs_log_stream_open(gs_http_stream *out, const gs_log_stream_options *options) {
    log_stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        if (options->follow) gs_stream_slots_give(options->slots, options->holder);
        return gs_error(GS_RESOURCE_EXHAUSTED, "log stream: out of memory");
    }
    stream->options = *options;
    stream->request = gs_json_copy(options->request);
    take_batch(stream, options->first);
    stream->options.request = stream->options.first = NULL;  // not ours
    *out = (gs_http_stream){.read = read_logs, .close = close_logs, .ctx = stream};
    return gs_ok();
}
