// Gradients of the caller's own, and their way into the buckets and out of them again.
//
// Tensors may be fp32, fp64, fp16 or bf16, whatever the parameter is; each copy casts, straight
// from the tensor to where it is reduced. What a tensor holds counts only when this step wrote it:
// a stale gradient is never sent. On a GPU the tensors of a bucket are copied together when it is
// full, and out when work that is launched later may read them. When which copy is due is the
// reducer's business.
#ifndef GRADSYNC_BUCKET_GRAD_COPIES_H
#define GRADSYNC_BUCKET_GRAD_COPIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/param_spec.h"
#include "core/status.h"
#include "gradsync/bucket/copy_table.h"
#include "gradsync/bucket/grad_layout.h"
#include "gradsync/bucket/separate_grad.h"
#include "kernels/device.h"

typedef struct gs_grad_copies {
    gs_separate_grad *tensors;  // owned list of borrowed tensors; NULL: gradients are views
    void **grads;               // their pointers
    uint8_t *written;           // by a pass of the present window (a step; in exact mode a shard)
    size_t num_params;
    gs_copy_table table;  // on a GPU
} gs_grad_copies;

// INVALID_ARGUMENT names a parameter without a tensor, or with one that holds no floats.
GS_NODISCARD gs_status gs_separate_grads_check(const gs_separate_grad *tensors,
                                               const gs_param_spec *params, size_t num_params);

// The list is copied, tensors are borrowed until release.
GS_NODISCARD gs_status gs_grad_copies_init(gs_grad_copies *copies, const gs_separate_grad *tensors,
                                           const gs_grad_layout *layout, gs_device *device);
void gs_grad_copies_release(gs_grad_copies *copies);

// After each change of plan or slots.
GS_NODISCARD gs_status gs_grad_copies_place(gs_grad_copies *copies, const gs_grad_layout *layout);

void gs_grad_copies_begin_window(gs_grad_copies *copies);
// A bucket is full: its members that this window wrote → `slot`, on a GPU; elsewhere they are
// there.
void gs_grad_copies_bucket_in(const gs_grad_copies *copies, const gs_grad_layout *layout, int slot,
                              size_t index, gs_work_stream on);
// results → tensors, of the members of a bucket whose flag is set.
void gs_grad_copies_bucket_out(const gs_grad_copies *copies, const gs_grad_layout *layout,
                               size_t index, const uint8_t *flags, gs_device *device);
// A member is final: its tensor → its place in `slot`. On a GPU nothing; its bucket takes it along.
void gs_grad_copies_in(const gs_grad_copies *copies, const gs_grad_layout *layout, int slot,
                       size_t param, gs_device *device);

#endif
