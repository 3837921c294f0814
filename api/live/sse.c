#include "api/live/sse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMMENT_SECONDS = 15, JOIN_MS = 2000, LOOK_MS = 1000, RPC_MS = 5000 };

// One client. Owned by its connection's thread.
typedef struct sse_stream {
    gs_sse_options options;
    char job[64];
    gs_event_hub *hub;
    uint64_t position;
    gs_strbuf out;  // what is to be sent; out_at bytes of it have been
    size_t out_at;
    bool wants_snapshot, ended;
    int64_t comment_at_ns;
    gs_hub_event step;       // held back; step.data NULL: none
    int64_t num_held_steps;  // events that `step` stands for
    int64_t known_step;      // the last one that the client was told; -1: none
    int64_t step_at_ns;
} sse_stream;

void gs_sse_write_event(gs_strbuf *out, const char *id, const char *event, const char *data) {
    if (id) gs_strbuf_printf(out, "id: %s\n", id);
    gs_strbuf_printf(out, "event: %s\n", event);
    for (;;) {
        size_t line_len = strcspn(data, "\r\n");
        gs_strbuf_puts(out, "data: ");
        gs_strbuf_add(out, data, line_len);
        gs_strbuf_putc(out, '\n');
        data += line_len;
        if (*data == '\0') break;
        data += data[0] == '\r' && data[1] == '\n' ? 2 : 1;
    }
    gs_strbuf_putc(out, '\n');
}

// The event stream's own snapshot, taken after its place in the ring: what comes twice is harmless,
// and nothing is missed.
static void write_snapshot(sse_stream *stream) {
    char id[48];
    stream->position = gs_event_hub_position(stream->hub, id);
    gs_json *request = gs_json_new_object(), *reply = NULL;
    if (stream->job[0]) gs_json_set_string(request, "job", stream->job);
    bool lists_events = stream->options.only_events || stream->job[0] == '\0';
    gs_status status =
        gs_rpc_call(stream->options.client, lists_events ? GS_LIST_EVENTS : GS_GET_JOB, request,
                    &reply, gs_deadline_in_ms(RPC_MS));
    char *text = NULL;
    if (!status.code) {
        stream->known_step = gs_json_int_or(gs_json_get(reply, "progress"), "step", -1);
        status = gs_json_encode(&text, NULL, reply, false);
    }
    gs_json_release(request);
    gs_json_release(reply);
    if (!status.code) {
        gs_sse_write_event(&stream->out, id, "snapshot", text);
        stream->wants_snapshot = false;
    } else if (status.code == GS_NOT_FOUND) {
        gs_sse_write_event(&stream->out, id, "end", "{\"reason\":\"gone\"}");
        stream->ended = true;
    }
    free(text);
}

// How many steps the held event stands for: those behind the last one that the client knows. When
// it knows none, or training went back to a checkpoint, the events that were held.
static int64_t count_steps(sse_stream *stream, int64_t step) {
    int64_t before = stream->known_step;
    stream->known_step = step;
    return before >= 0 && step > before ? step - before : stream->num_held_steps;
}

static void write_step(sse_stream *stream) {
    if (!stream->step.data) return;
    gs_json *step = NULL;
    char *text = NULL;
    gs_status status = gs_json_parse(&step, stream->step.data, strlen(stream->step.data));
    if (!status.code) {
        int64_t num_steps = count_steps(stream, gs_json_int_or(step, "step", -1));
        gs_json_set_int(step, "steps_summarised", num_steps);
        status = gs_json_encode(&text, NULL, step, false);
    }
    if (!status.code) gs_sse_write_event(&stream->out, stream->step.id, "step", text);
    gs_json_release(step);
    free(text);
    free(stream->step.data);
    stream->step.data = NULL;
    stream->num_held_steps = 0;
    stream->step_at_ns = gs_now_ns() + stream->options.interval_ms * GS_NS_PER_MS;
}

static void hold_step(sse_stream *stream, gs_hub_event *event) {
    free(stream->step.data);
    stream->step = *event;
    stream->num_held_steps++;
    if (gs_now_ns() >= stream->step_at_ns) write_step(stream);
}

static void take_event(sse_stream *stream, gs_hub_event *event) {
    if (strcmp(event->name, "step") == 0 && !stream->options.only_events) {
        hold_step(stream, event);  // takes the data
        return;
    }
    bool is_mark = strcmp(event->name, "end") == 0 || strcmp(event->name, "reset") == 0;
    if (is_mark) write_step(stream);
    if (is_mark || !stream->options.only_events || strcmp(event->name, "event") == 0)
        gs_sse_write_event(&stream->out, event->id, event->name, event->data);
    if (strcmp(event->name, "end") == 0) stream->ended = true;
    if (strcmp(event->name, "reset") == 0) stream->wants_snapshot = true;
    free(event->data);
}

// Waits for the next thing to send, at most until a comment is due.
static void wait_for_event(sse_stream *stream) {
    gs_deadline deadline = gs_deadline_in_ms(LOOK_MS);
    if (stream->step.data) deadline = gs_deadline_min(deadline, (gs_deadline){stream->step_at_ns});
    gs_hub_event event = {0};
    uint64_t num_dropped = 0;
    gs_hub_outcome outcome =
        gs_event_hub_next(stream->hub, &event, &stream->position, &num_dropped, deadline);
    if (num_dropped > 0) {
        char data[64];
        snprintf(data, sizeof data, "{\"dropped\":%" PRIu64 "}", num_dropped);
        gs_sse_write_event(&stream->out, NULL, "gap", data);
        gs_api_metrics_add_dropped(stream->options.metrics, num_dropped);
    }
    if (outcome == GS_HUB_EVENT) take_event(stream, &event);
    if (outcome == GS_HUB_STOPPING) {
        gs_sse_write_event(&stream->out, NULL, "end", "{\"reason\":\"server_shutdown\"}");
        stream->ended = true;
    }
    if (outcome == GS_HUB_END) {
        write_step(stream);
        gs_sse_write_event(&stream->out, NULL, "end", "{\"reason\":\"terminal\"}");
        stream->ended = true;
    }
    if (outcome == GS_HUB_NOTHING && stream->step.data && gs_now_ns() >= stream->step_at_ns)
        write_step(stream);
}

static ssize_t read_events(void *ctx, char *buffer, size_t max_bytes) {
    sse_stream *stream = ctx;
    while (stream->out_at == stream->out.len) {
        if (stream->ended || gs_strbuf_failed(&stream->out) ||
            gs_http_client_gone(stream->options.http_client))
            return GS_HTTP_STREAM_END;
        gs_strbuf_clear(&stream->out);
        stream->out_at = 0;
        if (!gs_token_store_admits_still(stream->options.tokens, stream->options.sessions, &stream->options.caller)) {
            gs_sse_write_event(&stream->out, NULL, "end", "{\"reason\":\"unauthenticated\"}");
            stream->ended = true;
        }
        if (!stream->ended && stream->wants_snapshot) write_snapshot(stream);
        if (!stream->out.len) wait_for_event(stream);
        if (!stream->out.len && gs_now_ns() >= stream->comment_at_ns)
            gs_strbuf_puts(&stream->out, ": still here\n\n");
        if (stream->out.len) stream->comment_at_ns = gs_now_ns() + COMMENT_SECONDS * GS_NS_PER_SEC;
    }
    size_t bytes = stream->out.len - stream->out_at;
    if (bytes > max_bytes) bytes = max_bytes;
    memcpy(buffer, stream->out.text + stream->out_at, bytes);
    stream->out_at += bytes;
    return (ssize_t)bytes;
}

static void close_events(void *ctx) {
    sse_stream *stream = ctx;
    if (stream->hub) gs_event_hub_leave(stream->hub);
    gs_stream_slots_give(stream->options.slots, stream->options.holder);
    gs_strbuf_release(&stream->out);
    free(stream->step.data);
    free(stream);
}

gs_status gs_sse_open(gs_http_stream *out, bool *nothing_left, const gs_sse_options *options) {
    *nothing_left = false;
    sse_stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        gs_stream_slots_give(options->slots, options->holder);
        return gs_error(GS_RESOURCE_EXHAUSTED, "event stream: out of memory");
    }
    stream->options = *options;
    snprintf(stream->job, sizeof stream->job, "%s", options->job);
    stream->wants_snapshot = true;
    stream->known_step = -1;
    stream->comment_at_ns = gs_now_ns() + COMMENT_SECONDS * GS_NS_PER_SEC;
    gs_status status =
        gs_event_hubs_join(&stream->hub, options->hubs, stream->job, gs_deadline_in_ms(JOIN_MS));
    if (status.code) {
        close_events(stream);
        return status;
    }
    gs_strbuf_puts(&stream->out, "retry: 2000\n\n");
    if (options->last_event_id) {
        if (gs_event_hub_resume(stream->hub, &stream->position, options->last_event_id)) {
            stream->wants_snapshot = false;
            *nothing_left = gs_event_hub_at_end(stream->hub, stream->position);
        } else {
            gs_sse_write_event(&stream->out, NULL, "reset", "{}");
        }
    }
    if (*nothing_left) {
        close_events(stream);
        return gs_ok();
    }
    *out = (gs_http_stream){.read = read_events, .close = close_events, .ctx = stream};
    return gs_ok();
}
