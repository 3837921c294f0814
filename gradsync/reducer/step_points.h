// Points of a step on its GPU, and when it reached them on the clock of gs_now_ns. Where launchers return when
// their work is done there are none: the host's own times say it.
//
// Reading is for after a wait. Times are those of the host to within the return of a wait, some microseconds, and
// never earlier.
#ifndef GRADSYNC_REDUCER_STEP_POINTS_H
#define GRADSYNC_REDUCER_STEP_POINTS_H

#include <stdbool.h>
#include <stdint.h>

#include "core/status.h"
#include "kernels/device.h"

typedef enum gs_step_point {
    GS_POINT_FORWARD = 0,
    GS_POINT_BACKWARD,      // the first gradient of the reducing pass
    GS_POINT_BACKWARD_END,
    GS_NUM_STEP_POINTS
} gs_step_point;

typedef struct gs_step_points {
    gs_device *device;  // NULL: no points are taken
    gs_event *anchors[2];  // where both clocks were compared last, and where they will be next
    int64_t anchor_ns[2];
    int anchor;
    gs_event *events[GS_NUM_STEP_POINTS];
    bool taken[GS_NUM_STEP_POINTS];
} gs_step_points;

// None for the host. Release after an error, too.
GS_NODISCARD gs_status gs_step_points_init(gs_step_points *points, gs_device *device);
void gs_step_points_release(gs_step_points *points);
// The clocks are compared around a wait for the compute stream: mark before it, meet right after it, and align
// when the points of the step have been read.
void gs_step_points_mark(gs_step_points *points);
void gs_step_points_meet(gs_step_points *points);
void gs_step_points_align(gs_step_points *points);

void gs_step_points_begin(gs_step_points *points);
void gs_step_points_take(gs_step_points *points, gs_step_point which, gs_stream *stream);
// *ns stays as it is where the point was not taken.
GS_NODISCARD gs_status gs_step_points_read(const gs_step_points *points, gs_step_point which,
                                           int64_t *ns);

#endif
