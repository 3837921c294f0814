#include "worker/pass/device_times.h"

#include <stdlib.h>

#include "core/clock.h"

#define MAX_MARKS 256

typedef struct mark {
    gs_event *event;  // owned
    gs_span_kind kind;
} mark;

struct gs_device_times {
    gs_device *device;
    mark marks[MAX_MARKS];
    int num_marks;
    int num_ended;  // of them in front of `end`: those behind it are the next step's
    gs_event *end;  // owned
};

gs_status gs_device_times_create(gs_device_times **out, gs_device *device) {
    *out = NULL;
    if (gs_device_is_host(device)) return gs_ok();
    gs_device_times *times = calloc(1, sizeof *times);
    if (!times) return gs_error(GS_RESOURCE_EXHAUSTED, "device times: out of memory");
    times->device = device;
    gs_status status = gs_event_create(&times->end, device, true);
    for (int i = 0; i < MAX_MARKS && !status.code; i++)
        status = gs_event_create(&times->marks[i].event, device, true);
    if (status.code) {
        gs_device_times_destroy(times);
        return gs_status_prefix(status, "device times");
    }
    *out = times;
    return gs_ok();
}

void gs_device_times_destroy(gs_device_times *times) {
    if (!times) return;
    for (int i = 0; i < MAX_MARKS; i++) gs_event_destroy(times->marks[i].event);
    gs_event_destroy(times->end);
    free(times);
}

void gs_device_times_mark(gs_device_times *times, gs_span_kind kind) {
    if (!times || times->num_marks == MAX_MARKS) return;
    mark *at = &times->marks[times->num_marks++];
    at->kind = kind;
    gs_event_record(at->event, gs_device_stream(times->device));
}

static void add_phase(gs_device_phases *phases, gs_span_kind kind, int64_t ns) {
    double seconds = gs_seconds_of(ns);
    if (kind == GS_SPAN_FORWARD) phases->forward += seconds;
    else if (kind == GS_SPAN_BACKWARD) phases->backward += seconds;
    else if (kind == GS_SPAN_OPTIMIZER) phases->optimizer += seconds;
}

void gs_device_times_mark_end(gs_device_times *times) {
    if (!times) return;
    gs_event_record(times->end, gs_device_stream(times->device));
    times->num_ended = times->num_marks;
}

static gs_status read_marks(gs_device_times *times, gs_device_phases *phases, int64_t end_ns,
                            gs_timeline *timeline) {
    int64_t before_ns = 0, after_ns;
    for (int i = 0; i < times->num_ended; i++) {
        const mark *at = &times->marks[i];
        GS_TRY(gs_event_elapsed(at->event, times->end, &after_ns));
        if (i > 0 && at->kind != GS_SPAN_UNSET) {
            add_phase(phases, at->kind, before_ns - after_ns);
            gs_timeline_add_span(timeline,
                                 &(gs_span){at->kind, end_ns - before_ns, end_ns - after_ns});
        }
        before_ns = after_ns;
    }
    return gs_ok();
}

// Marks behind the end become the first ones.
static void forget_ended(gs_device_times *times) {
    for (int i = times->num_ended; i < times->num_marks; i++) {
        mark kept = times->marks[i];
        times->marks[i] = times->marks[i - times->num_ended];
        times->marks[i - times->num_ended] = kept;
    }
    times->num_marks -= times->num_ended;
    times->num_ended = 0;
}

gs_status gs_device_times_read(gs_device_times *times, gs_device_phases *phases,
                               gs_timeline *timeline) {
    *phases = (gs_device_phases){0};
    if (!times) return gs_ok();
    // The device came to the end just now: that is how its times are found on the host's clock.
    gs_status status = read_marks(times, phases, gs_now_ns(), timeline);
    forget_ended(times);
    return gs_status_prefix(status, "device times");
}
