// Many small tensors in few collectives between ranks: broadcast of parameters and buffers, sums of
// whatever has no bucket.
//
// Tensors are chunked up to `limit_bytes` (0: 250 MiB): neighbours in a broadcast, those of one
// dtype in a sum; in a broadcast a tensor of 1 MiB or more travels alone, and a chunk ends when it
// holds 1 MiB: a copy then costs more than another collective. The chunks follow from
// sizes and dtypes alone, so that all ranks cut alike; a chunk whose tensors lie in one run of this
// rank's memory is not copied. Two are in flight.
#ifndef GRADSYNC_COMM_COALESCE_H
#define GRADSYNC_COMM_COALESCE_H

#include <stddef.h>

#include "core/abi.h"
#include "core/clock.h"
#include "core/dtype.h"
#include "gradsync/comm/comm.h"

GS_BEGIN_DECLS

typedef struct gs_tensor_view {
    void *data;
    size_t count;
    gs_dtype dtype;
} gs_tensor_view;

GS_NODISCARD gs_status gs_coalesced_broadcast(gs_comm *comm, const gs_tensor_view *tensors,
                                              size_t num_tensors, int root, size_t limit_bytes,
                                              gs_deadline deadline);

// In place, on every rank: the scaled sum (or largest, or smallest) over ranks, in rank order.
// Lists that mix dtypes are fine.
//   scale  0: 1; must be 1 for integers
GS_NODISCARD gs_status gs_coalesced_allreduce(gs_comm *comm, const gs_tensor_view *tensors,
                                              size_t num_tensors, gs_reduce_op op, double scale,
                                              size_t limit_bytes, gs_deadline deadline);

GS_END_DECLS

#endif
