// Arithmetic on main gradients, whichever their type: doubles of fp64 parameters, floats of all
// others.
//
// A main gradient is what a bucket holds; what travels, and what a caller keeps, may have other
// types. The bits of a result depend on values and order alone, never on threads.
#ifndef GRADSYNC_BUCKET_MAIN_GRAD_H
#define GRADSYNC_BUCKET_MAIN_GRAD_H

#include <stddef.h>

#include "core/dtype.h"
#include "gradsync/comm/work_stream.h"

static inline gs_dtype gs_main_grad_dtype(gs_dtype param_dtype) {
    return param_dtype == GS_FP64 ? GS_FP64 : GS_FP32;
}

// Enqueued on the stream `on`.
void gs_main_grad_zero(void *grad, gs_dtype dtype, size_t count, gs_work_stream on);
void gs_main_grad_add(void *left, const void *right, gs_dtype dtype, size_t count,
                      gs_work_stream on);  // left += right
// The factor is rounded to the type of the gradient first.
void gs_main_grad_scale(void *grad, double factor, gs_dtype dtype, size_t count, gs_work_stream on);

#endif
