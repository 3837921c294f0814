// Collectives among the devices of one process: broadcast and sum, of one tensor or of many at
// once.
//
// Many tensors go in chunks of one dtype, up to a limit (gs_take_tensors, one running chunk for
// each dtype), so that a list may mix types and comes back in its order with its values
// unconverted. Sums run in device order 0..k-1 whatever the destination is, so that it does not
// decide the bits. Work is enqueued on the streams of the devices that receive; all of them belong
// to the caller meanwhile. What a GPU is to receive from another device goes through the host,
// which waits.
//
// Source: PyTorch's broadcast_coalesced and reduce_add_coalesced (torch/csrc/cuda/comm).
#ifndef GRADSYNC_LOCAL_LOCAL_COALESCE_H
#define GRADSYNC_LOCAL_LOCAL_COALESCE_H

#include <stddef.h>

#include "core/abi.h"
#include "core/status.h"
#include "gradsync/tensor/device_tensor.h"

GS_BEGIN_DECLS

#define GS_LOCAL_COALESCE_BYTES ((size_t)10 << 20)

// One list for each device, in input order. List 0 is the input itself; the others are windows into
// flat buffers that the result owns, one for each chunk. INVALID_ARGUMENT, naming the position,
// without tensors or devices, or when a tensor is not on devices[0].
//   limit_bytes  0: GS_LOCAL_COALESCE_BYTES
GS_NODISCARD gs_status gs_broadcast_coalesced(gs_tensor_lists **out,
                                              const gs_device_tensor *tensors, size_t num_tensors,
                                              gs_device *const *devices, size_t num_devices,
                                              size_t limit_bytes);
// The same for one tensor.
GS_NODISCARD gs_status gs_broadcast_tensor(gs_tensor_lists **out, const gs_device_tensor *tensor,
                                           gs_device *const *devices, size_t num_devices);

typedef struct gs_tensor_list {
    const gs_device_tensor *tensors;  // all on one device
    size_t num_tensors;
} gs_tensor_list;

// One list on the destination, in input order: the sums over the lists. One list alone comes back
// as it is. INVALID_ARGUMENT, naming list and position, without lists or tensors, for lists that
// differ in number, shape or dtype, a list on several devices, and a destination that holds none of
// them.
//   destination  NULL: the device of list 0
//   limit_bytes  0: GS_LOCAL_COALESCE_BYTES
GS_NODISCARD gs_status gs_reduce_add_coalesced(gs_tensor_lists **out, const gs_tensor_list *lists,
                                               size_t num_lists, gs_device *destination,
                                               size_t limit_bytes);
// The same for one tensor of each device.
GS_NODISCARD gs_status gs_reduce_add(gs_held_tensor *out, const gs_device_tensor *tensors,
                                     size_t num_tensors, gs_device *destination);

GS_END_DECLS

#endif
