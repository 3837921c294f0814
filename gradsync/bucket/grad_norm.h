// Norms of gradients in one fixed order: chunks inside a tensor, tensors in registration order,
// then ranks. The same bits for every plan and number of threads; and what clips by them.
//
// On a GPU what takes a norm here allocates and waits; other norms than the 2-norm are taken by the
// host. A reducer's own norm does neither (bucket_tally.h). A device that fails has a norm of NaN.
#ifndef GRADSYNC_BUCKET_GRAD_NORM_H
#define GRADSYNC_BUCKET_GRAD_NORM_H

#include <stddef.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/status.h"
#include "gradsync/comm/comm.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

// The norm of tensors whose sums of squares these are, in order of registration.
double gs_grad_norm(const double *squares, size_t num_tensors);

// max_norm / (norm + 1e-6), at most 1: what brings gradients of this norm to at most `max_norm`. 0
// for an infinite norm, NaN for NaN: such gradients are not saved by a factor.
float gs_grad_clip_coefficient(double norm, double max_norm);
// The same as an option is meant: max_norm 0 is no clipping, 1.
float gs_grad_clip_factor(double norm, double max_norm);

// Gradients of a caller's own. Borrowed for the call.
typedef struct gs_grad_list {
    void *const *grads;    // fp32
    const size_t *counts;  // elements
    size_t num_grads;
} gs_grad_list;

// The p-norm of all of them, p > 0, however large; the largest |g| when p is INFINITY. Infinite or
// NaN elements make it so.
double gs_grad_list_norm(const gs_grad_list *list, double p, gs_device *device);
// Where each rank holds other gradients: the norm of all of them, from each rank's own. Collective;
// the same bits on every rank.
GS_NODISCARD gs_status gs_grad_norm_across(double *norm, double own_norm, double p, gs_comm *comm,
                                           gs_deadline deadline);
// Multiplies all of them by gs_grad_clip_coefficient(norm, max_norm).
void gs_grad_list_clip(const gs_grad_list *list, double norm, double max_norm, gs_device *device);

GS_END_DECLS

#endif
