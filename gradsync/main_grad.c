#include "gradsync/main_grad.h"

#include <math.h>

#include "gradsync/grad_norm.h"

static void reduce(void *out, const void *const *inputs, int num_inputs, double scale,
                   gs_dtype dtype, size_t count, gs_device *device) {
    const gs_reduction reduction = {.outputs = &out,
                                    .inputs = inputs,
                                    .num_outputs = 1,
                                    .num_inputs = num_inputs,
                                    .dtype = dtype,
                                    .op = GS_OP_SUM,
                                    .scale = scale,
                                    .count = count};
    gs_device_kernels(device)->reduce(gs_device_stream(device), &reduction);
}

// Zero has the same bits in every type.
void gs_main_grad_zero(void *grad, gs_dtype dtype, size_t count, gs_device *device) {
    if (!count) return;
    gs_device_kernels(device)->fill(gs_device_stream(device), grad, 0,
                                    count * (gs_dtype_bytes(dtype) / sizeof(float)));
}

void gs_main_grad_add(void *left, const void *right, gs_dtype dtype, size_t count,
                      gs_device *device) {
    if (!count) return;
    if (dtype == GS_FP32)
        gs_device_kernels(device)->add(gs_device_stream(device), left, left, right, count);
    else
        reduce(left, (const void *const[]){left, right}, 2, 1, dtype, count, device);
}

void gs_main_grad_scale(void *grad, double factor, gs_dtype dtype, size_t count,
                        gs_device *device) {
    if (count) reduce(grad, (const void *const[]){grad}, 1, factor, dtype, count, device);
}

#define NUM_LANES 8

// Element i belongs to lane i mod NUM_LANES; lanes are added in order.
static double sum_wide_squares(const double *grad, size_t count) {
    double lanes[NUM_LANES] = {0}, sum = 0;
    for (size_t i = 0; i < count; i++) lanes[i % NUM_LANES] += grad[i] * grad[i];
    for (size_t l = 0; l < NUM_LANES; l++) sum += lanes[l];
    return sum;
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
