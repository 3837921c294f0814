// Sums of squares of gradients: what norms are made of, and how a value that is not finite is
// found.
//
// Chunks inside a tensor are added in a fixed order: the same bits for every plan and number of
// threads. A GPU's sums come in another order than the host's. Where squares leave the range of
// fp32 they are taken anew, in fp64.
#ifndef GRADSYNC_BUCKET_GRAD_SQUARES_H
#define GRADSYNC_BUCKET_GRAD_SQUARES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/abi.h"
#include "core/dtype.h"
#include "core/status.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

// Of one tensor; false when an element is infinite or NaN. One pass over the memory, further ones
// only when the squares leave the range of fp32. On a GPU it allocates and waits, and a device that
// fails has NaN.
bool gs_grad_squares(double *squares, const float *grad, size_t count, gs_device *device);

// Of a main gradient in the host's memory, of its type; false, and NaN, when an element is infinite
// or NaN. Finite doubles above 1e154 have an infinite sum.
bool gs_grad_squares_main(double *squares, const void *grad, gs_dtype dtype, size_t count,
                          gs_device *device);
// The same of a GPU's memory, by the host, piece by piece: for what its kernels do not sum. Waits.
GS_NODISCARD gs_status gs_grad_squares_fetch(double *squares, const void *grad, gs_dtype dtype,
                                             size_t count, gs_device *device);

// Of floats in the host's memory, in fp64 and in order: finite for all finite floats.
double gs_grad_squares_wide(const float *grad, size_t count);

// Of all of `num_grads` tensors of a GPU together, in one launch. Allocates and waits. False where
// its kernels could not say it: the device failed, or the squares are beyond fp32.
bool gs_grad_squares_launch(double *sum, void *const *grads, const size_t *counts, size_t num_grads,
                            gs_device *device);

GS_END_DECLS

#endif
