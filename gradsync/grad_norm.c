#include "gradsync/grad_norm.h"

#include <math.h>
#include <stdint.h>

// Large finite gradients: fp32 squares overflow, fp64 ones do not.
static double wide_squares(const float *grad, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)grad[i] * grad[i];
    return sum;
}

bool gs_grad_squares(double *squares, const float *grad, size_t count, gs_device *device) {
    const gs_kernels *kernels = gs_device_kernels(device);
    gs_stream *stream = gs_device_stream(device);
    *squares = 0;
    if (!count) return true;
    kernels->sum_squares(stream, squares, grad, count);
    if (isfinite(*squares)) return true;
    uint64_t num_nonfinite = 0;
    kernels->count_nonfinite(stream, &num_nonfinite, grad, count);
    if (num_nonfinite) return false;
    *squares = wide_squares(grad, count);
    return true;
}

double gs_grad_norm(const double *squares, size_t num_tensors) {
    double sum = 0;
    for (size_t i = 0; i < num_tensors; i++) sum += squares[i];
    return sqrt(sum);
}

float gs_grad_clip_factor(double norm, double max_norm) {
    if (max_norm <= 0) return 1.0f;
    double factor = max_norm / (norm + 1e-6);
    return factor > 1 ? 1.0f : (float)factor;  // NaN stays NaN: such a step is not applied
}
