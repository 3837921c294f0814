// The squares of reduced rows, with nothing allocated in a step.
#ifndef GRADSYNC_SPARSE_ROW_SQUARES_H
#define GRADSYNC_SPARSE_ROW_SQUARES_H

#include <stddef.h>

#include "core/clock.h"
#include "core/status.h"
#include "kernels/device.h"

typedef struct gs_row_squares {
    gs_device *device;     // borrowed
    gs_square_item *item;  // pinned, its sum behind it; NULL: the host measures
} gs_row_squares;

// Release after an error, too.
GS_NODISCARD gs_status gs_row_squares_init(gs_row_squares *squares, gs_device *device);
void gs_row_squares_release(gs_row_squares *squares);

// Of the memory of the device, once all that was enqueued is done: waits. NaN when an element is
// infinite or NaN.
GS_NODISCARD gs_status gs_row_squares_take(const gs_row_squares *squares, double *sum,
                                           const float *rows, size_t count, gs_deadline deadline);

#endif
