// Row-sparse tensors among the devices of one process: broadcast and sum, beside the dense ones of
// local_coalesce.h.
//
// A sparse tensor is two dense ones, indices and values; so a list of them is broadcast as twice as
// many tensors, all indices in one kind of chunk, all values in another. Sums are taken tensor by
// tensor.
#ifndef GRADSYNC_LOCAL_SPARSE_TENSOR_H
#define GRADSYNC_LOCAL_SPARSE_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/status.h"
#include "gradsync/tensor/device_tensor.h"

GS_BEGIN_DECLS

typedef struct gs_sparse_tensor {
    gs_device_tensor indices;  // (n) of GS_I32: rows of the values, any order, duplicates add up
    gs_device_tensor values;   // (n, …) on the same device
    int64_t num_rows;          // of the dense tensor
} gs_sparse_tensor;

// List d of `out` holds indices and values of tensor i at 2·i and 2·i + 1. List 0 is the input
// itself.
GS_NODISCARD gs_status gs_broadcast_sparse(gs_tensor_lists **out, const gs_sparse_tensor *tensors,
                                           size_t num_tensors, gs_device *const *devices,
                                           size_t num_devices, size_t limit_bytes);

// The sum of one tensor of each device on the destination (NULL: the first one's device): sorted
// distinct indices and fp32 rows. Rows of one index are added in order of devices, then of
// occurrence. One tensor alone comes out like that, too. INVALID_ARGUMENT names the device's
// position.
typedef struct gs_sparse_sum {
    gs_held_tensor indices, values;
    int64_t num_rows;
} gs_sparse_sum;
GS_NODISCARD gs_status gs_reduce_add_sparse(gs_sparse_sum *out, const gs_sparse_tensor *tensors,
                                            size_t num_tensors, gs_device *destination);
void gs_sparse_sum_release(gs_sparse_sum *sum);

GS_END_DECLS

#endif
