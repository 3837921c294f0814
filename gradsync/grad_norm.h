// The L2 norm of gradients in one fixed order: chunks inside a tensor, tensors in registration
// order. The same bits for every world size, plan and number of threads.
#ifndef GRADSYNC_GRAD_NORM_H
#define GRADSYNC_GRAD_NORM_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/device.h"

// Sum of squares of one tensor; false when an element is infinite or NaN. One pass over the memory,
// further ones only when the squares leave the range of fp32.
bool gs_grad_squares(double *squares, const float *grad, size_t count, gs_device *device);

// The norm of tensors whose sums of squares these are, in order of registration.
double gs_grad_norm(const double *squares, size_t num_tensors);

// What brings gradients of this norm to at most `max_norm`: max_norm / (norm + 1e-6), at most 1.
// max_norm 0: no clipping, 1.
float gs_grad_clip_factor(double norm, double max_norm);

#endif
