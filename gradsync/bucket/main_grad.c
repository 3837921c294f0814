#include "gradsync/bucket/main_grad.h"

#include <math.h>
#include <stdlib.h>

#include "gradsync/bucket/grad_norm.h"

#define PIECE_BYTES ((size_t)1 << 20)  // of a gradient on its way to the host

static void reduce(void *out, const void *const *inputs, int num_inputs, double scale,
                   gs_dtype dtype, size_t count, gs_work_stream on) {
    const gs_reduction reduction = {.outputs = &out,
                                    .inputs = inputs,
                                    .num_outputs = 1,
                                    .num_inputs = num_inputs,
                                    .dtype = dtype,
                                    .op = GS_OP_SUM,
                                    .scale = scale,
                                    .count = count};
    gs_device_kernels(on.device)->reduce(on.stream, &reduction);
}

// Zero has the same bits in every type.
void gs_main_grad_zero(void *grad, gs_dtype dtype, size_t count, gs_work_stream on) {
    if (!count) return;
    gs_device_kernels(on.device)->fill(on.stream, grad, 0,
                                       count * (gs_dtype_bytes(dtype) / sizeof(float)));
}

void gs_main_grad_add(void *left, const void *right, gs_dtype dtype, size_t count,
                      gs_work_stream on) {
    if (!count) return;
    if (dtype == GS_FP32)
        gs_device_kernels(on.device)->add(on.stream, left, left, right, count);
    else
        reduce(left, (const void *const[]){left, right}, 2, 1, dtype, count, on);
}

void gs_main_grad_scale(void *grad, double factor, gs_dtype dtype, size_t count,
                        gs_work_stream on) {
    if (count) reduce(grad, (const void *const[]){grad}, 1, factor, dtype, count, on);
}

#define NUM_LANES 8

// Element i belongs to lane i mod NUM_LANES; lanes are added in order.
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

bool gs_main_grad_squares(double *squares, const void *grad, gs_dtype dtype, size_t count,
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

gs_status gs_main_grad_fetch_squares(double *squares, const void *grad, gs_dtype dtype,
                                     size_t count, gs_device *device) {
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
