#include "gradsync/reducer/step_points.h"

#include <string.h>

#include "core/clock.h"

#define FIRST_SECONDS 60.0

gs_status gs_step_points_init(gs_step_points *points, gs_device *device) {
    *points = (gs_step_points){0};
    if (gs_device_is_host(device)) return gs_ok();
    points->device = device;
    for (int i = 0; i < 2; i++) GS_TRY(gs_event_create(&points->anchors[i], device, true));
    for (int i = 0; i < GS_NUM_STEP_POINTS; i++)
        GS_TRY(gs_event_create(&points->events[i], device, true));
    gs_step_points_mark(points);
    GS_TRY(gs_stream_wait(gs_device_stream(device), gs_deadline_in_seconds(FIRST_SECONDS)));
    gs_step_points_meet(points);
    gs_step_points_align(points);
    return gs_ok();
}

void gs_step_points_release(gs_step_points *points) {
    for (int i = 0; i < 2; i++) gs_event_destroy(points->anchors[i]);
    for (int i = 0; i < GS_NUM_STEP_POINTS; i++) gs_event_destroy(points->events[i]);
    *points = (gs_step_points){0};
}

void gs_step_points_mark(gs_step_points *points) {
    if (points->device)
        gs_event_record(points->anchors[!points->anchor], gs_device_stream(points->device));
}

void gs_step_points_meet(gs_step_points *points) {
    if (points->device) points->anchor_ns[!points->anchor] = gs_now_ns();
}

void gs_step_points_align(gs_step_points *points) {
    points->anchor = !points->anchor;
}

void gs_step_points_begin(gs_step_points *points) {
    memset(points->taken, 0, sizeof points->taken);
}

void gs_step_points_take(gs_step_points *points, gs_step_point which, gs_stream *stream) {
    gs_event_record(points->events[which], stream);
    points->taken[which] = true;
}

gs_status gs_step_points_read(const gs_step_points *points, gs_step_point which, int64_t *ns) {
    int64_t since_ns;
    if (!points->taken[which]) return gs_ok();
    GS_TRY(gs_event_elapsed(points->anchors[points->anchor], points->events[which], &since_ns));
    *ns = points->anchor_ns[points->anchor] + since_ns;
    return gs_ok();
}
