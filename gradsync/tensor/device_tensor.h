// A dense tensor in the memory of a device, and lists of them on several devices of one process.
//
// Devices are told apart by their handle: two CPU devices are two memories with threads of their
// own. A tensor is a value and borrows its memory; lists may own what lies behind them.
//
// Threads: lists serve one at a time, any, create and destroy included. Who adds buffers, destroys or
// refreshes has the devices of them to himself meanwhile.
#ifndef GRADSYNC_TENSOR_DEVICE_TENSOR_H
#define GRADSYNC_TENSOR_DEVICE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/abi.h"
#include "core/dtype.h"
#include "core/param_spec.h"
#include "core/status.h"
#include "kernels/device.h"

GS_BEGIN_DECLS

typedef struct gs_device_tensor {
    void *data;  // row-major, no gaps; NULL: absent
    gs_dtype dtype;
    int num_dims;  // 0 is a scalar
    int64_t shape[GS_MAX_DIMS];
    gs_device *device;  // whose memory it is; borrowed
} gs_device_tensor;

gs_device_tensor gs_device_tensor_make(const gs_param_spec *spec, void *data, gs_device *device);
size_t gs_device_tensor_count(const gs_device_tensor *tensor);  // elements
size_t gs_device_tensor_bytes(const gs_device_tensor *tensor);
bool gs_device_tensor_same_shape(const gs_device_tensor *a, const gs_device_tensor *b);

#define GS_SHAPE_TEXT_LEN 96
void gs_device_tensor_format_shape(char text[GS_SHAPE_TEXT_LEN], const gs_device_tensor *tensor);

// INVALID_ARGUMENT, naming the position, for a tensor without memory, dtype, device or with a
// negative dimension.
GS_NODISCARD gs_status gs_device_tensors_check(const gs_device_tensor *tensors, size_t num_tensors);

// Whether kernels of `device` read memory of `other`: its own, and on the CPU everybody's. (A GPU
// that was opened twice is two devices: nothing orders what their streams do.)
bool gs_device_reaches(const gs_device *device, const gs_device *other);
// Bytes between devices, on the stream of the one that receives. Where it does not reach the other
// they go through the host, which waits; an error sticks to that stream.
void gs_device_move(gs_device *to_device, void *to, gs_device *from_device, const void *from,
                    size_t bytes);

// A tensor, and whether its memory belongs to whoever holds this.
typedef struct gs_held_tensor {
    gs_device_tensor tensor;
    bool owned;
} gs_held_tensor;
GS_NODISCARD gs_status gs_held_tensor_alloc(gs_held_tensor *out, const gs_device_tensor *like,
                                            gs_device *device);
void gs_held_tensor_release(gs_held_tensor *held);

// Lists of the same tensors, one for each device. Flat buffers behind them are
// owned; what was handed in is borrowed until destroy.
typedef struct gs_tensor_lists gs_tensor_lists;

// Room for the lists and for `max_buffers` flat buffers; all tensors absent.
GS_NODISCARD gs_status gs_tensor_lists_create(gs_tensor_lists **out, size_t num_lists,
                                              size_t num_tensors, size_t max_buffers);
void gs_tensor_lists_destroy(gs_tensor_lists *lists);
size_t gs_tensor_lists_count(const gs_tensor_lists *lists);
size_t gs_tensor_lists_num_tensors(const gs_tensor_lists *lists);  // of each list
size_t gs_tensor_lists_num_buffers(const gs_tensor_lists *lists);  // that it owns
// num_tensors of them, behind which list + 1 lies.
gs_device_tensor *gs_tensor_lists_of(const gs_tensor_lists *lists, size_t list);
// Memory on `device` for a tensor like this one, the lists' own: one of max_buffers.
GS_NODISCARD gs_status gs_tensor_lists_add_buffer(gs_tensor_lists *lists, gs_device_tensor *out,
                                                  const gs_device_tensor *like, gs_device *device);
// Copies the values of list 0 into those of list `list`, on that list's streams: a broadcast again.
// Neighbours that lie in one run on both sides go in one copy.
void gs_tensor_lists_refresh(const gs_tensor_lists *lists, size_t list);

GS_END_DECLS

#endif
