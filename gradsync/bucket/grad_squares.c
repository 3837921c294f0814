#include "gradsync/bucket/grad_squares.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#define LAUNCH_SECONDS 60.0
#define PIECE_BYTES ((size_t)1 << 20)  // of a gradient on its way to the host

double gs_grad_squares_wide(const float *grad, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)grad[i] * grad[i];
    return sum;
}

#define NUM_LANES 8

// Of doubles: element i belongs to lane i mod NUM_LANES; lanes are added in order.
typedef struct wide_squares {
    double lanes[NUM_LANES];
} wide_squares;

static void add_wide_squares(wide_squares *sum, const double *grad, size_t count) {
    for (size_t i = 0; i < count; i++) sum->lanes[i % NUM_LANES] += grad[i] * grad[i];
}

static double value_of_wide_squares(const wide_squares *squares) {
    double sum = 0;
    for (size_t l = 0; l < NUM_LANES; l++) sum += squares->lanes[l];
    return sum;
}

static double sum_wide_squares(const double *grad, size_t count) {
    wide_squares sum = {0};
    add_wide_squares(&sum, grad, count);
    return value_of_wide_squares(&sum);
}

static bool all_finite(const double *grad, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(grad[i])) return false;
    }
    return true;
}

// fp32 as gs_grad_squares does it where squares leave the range of fp32: in order, in fp64.
static void add_piece(wide_squares *sum, bool *finite, const void *piece, gs_dtype dtype,
                      size_t count) {
    if (dtype == GS_FP64) {
        add_wide_squares(sum, piece, count);
        *finite = *finite && all_finite(piece, count);
        return;
    }
    const float *grad = piece;
    for (size_t i = 0; i < count; i++) {
        sum->lanes[0] += (double)grad[i] * (double)grad[i];
        *finite = *finite && isfinite(grad[i]);
    }
}

gs_status gs_grad_squares_fetch(double *squares, const void *grad, gs_dtype dtype, size_t count,
                                gs_device *device) {
    size_t element_bytes = gs_dtype_bytes(dtype), piece_count = PIECE_BYTES / element_bytes;
    wide_squares sum = {0};
    bool finite = true;
    void *piece = malloc(PIECE_BYTES);
    gs_status status = gs_ok();
    if (!piece) status = gs_error(GS_RESOURCE_EXHAUSTED, "gradient norm: out of memory");
    for (size_t first = 0, part; first < count && !status.code; first += part) {
        part = count - first < piece_count ? count - first : piece_count;
        status = gs_device_download(device, piece, (const char *)grad + first * element_bytes,
                                    part * element_bytes);
        if (!status.code) add_piece(&sum, &finite, piece, dtype, part);
    }
    free(piece);
    *squares = finite ? value_of_wide_squares(&sum) : (double)NAN;
    return status;
}

// Items and results in pinned memory, which is the caller's, also after an error.
typedef struct launched_squares {
    gs_square_item *items;
    double *sums;
} launched_squares;

static gs_status launch_squares(launched_squares *out, void *const *grads, const size_t *counts,
                                size_t num_grads, gs_device *device) {
    void *memory;
    size_t num_items = 0, item_bytes = (num_grads + 1) * sizeof *out->items;
    GS_TRY(gs_device_alloc_pinned(device, &memory, item_bytes + num_grads * sizeof *out->sums));
    out->items = memory;
    out->sums = (double *)((char *)memory + item_bytes);
    for (size_t i = 0; i < num_grads; i++) {
        if (counts[i])
            out->items[num_items++] = (gs_square_item){grads[i], &out->sums[i], counts[i]};
    }
    if (num_items)
        gs_device_kernels(device)->sum_squares_many(gs_device_stream(device), out->items,
                                                    num_items);
    return gs_stream_wait(gs_device_stream(device), gs_deadline_in_seconds(LAUNCH_SECONDS));
}

bool gs_grad_squares_launch(double *sum, void *const *grads, const size_t *counts, size_t num_grads,
                            gs_device *device) {
    launched_squares launched = {0};
    gs_status status = launch_squares(&launched, grads, counts, num_grads, device);
    *sum = 0;
    for (size_t i = 0; i < num_grads && !status.code; i++) *sum += launched.sums[i];
    gs_device_free_pinned(device, launched.items);
    return !status.code && isfinite(*sum);
}

static bool squares_of_device(double *squares, const float *grad, size_t count, gs_device *device) {
    launched_squares launched = {0};
    gs_status status = launch_squares(&launched, (void *const[]){(float *)grad}, &count, 1, device);
    if (!status.code) *squares = launched.sums[0];
    if (!status.code && !isfinite(*squares))
        status = gs_grad_squares_fetch(squares, grad, GS_FP32, count, device);
    gs_device_free_pinned(device, launched.items);
    if (status.code) *squares = (double)NAN;
    return !isnan(*squares);
}

bool gs_grad_squares(double *squares, const float *grad, size_t count, gs_device *device) {
    if (!gs_device_is_host(device)) return squares_of_device(squares, grad, count, device);
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    *squares = 0;
    if (!count) return true;
    kernels->sum_squares(stream, squares, grad, count);
    if (isfinite(*squares)) return true;
    uint64_t num_nonfinite = 0;
    kernels->count_nonfinite(stream, &num_nonfinite, grad, count);
    if (num_nonfinite) return false;
    *squares = gs_grad_squares_wide(grad, count);
    return true;
}

bool gs_grad_squares_main(double *squares, const void *grad, gs_dtype dtype, size_t count,
                          gs_device *device) {
    bool finite = true;
    if (dtype == GS_FP32) {
        finite = gs_grad_squares(squares, grad, count, device);
    } else {
        *squares = sum_wide_squares(grad, count);
        finite = isfinite(*squares) || all_finite(grad, count);
    }
    if (!finite) *squares = (double)NAN;
    return finite;
}
