#include "gradsync/sparse/row_squares.h"

#include <math.h>

#include "gradsync/bucket/grad_squares.h"

gs_status gs_row_squares_init(gs_row_squares *squares, gs_device *device) {
    void *memory;
    *squares = (gs_row_squares){.device = device};
    if (gs_device_is_host(device)) return gs_ok();
    GS_TRY(gs_device_alloc_pinned(device, &memory, sizeof *squares->item + sizeof(double)));
    squares->item = memory;
    squares->item->sum = (double *)(void *)(squares->item + 1);
    return gs_ok();
}

void gs_row_squares_release(gs_row_squares *squares) {
    if (squares->item) gs_device_free_pinned(squares->device, squares->item);
    *squares = (gs_row_squares){0};
}

static gs_status take_on_device(const gs_row_squares *squares, double *sum, const float *rows,
                                size_t count, gs_deadline deadline) {
    gs_device *device = squares->device;
    gs_square_item *item = squares->item;
    *item->sum = 0;
    item->from = rows;
    item->count = count;
    if (count) gs_device_kernels(device)->sum_squares_many(gs_device_stream(device), item, 1);
    GS_TRY(gs_stream_wait(gs_device_stream(device), deadline));
    *sum = *item->sum;
    return isfinite(*sum) ? gs_ok() : gs_grad_squares_fetch(sum, rows, GS_FP32, count, device);
}

gs_status gs_row_squares_take(const gs_row_squares *squares, double *sum, const float *rows,
                              size_t count, gs_deadline deadline) {
    if (squares->item) return take_on_device(squares, sum, rows, count, deadline);
    gs_grad_squares_main(sum, rows, GS_FP32, count, squares->device);
    return gs_stream_wait(gs_device_stream(squares->device), deadline);
}
