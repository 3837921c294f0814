// A model's tensors on several devices of one process, and the way back for their gradients
// (PyTorch: replicate).
//
// Shared parameters stay shared: two places of a table that hold the same memory are one tensor,
// which is copied once. Absent tensors stay absent.
//
// Threads: one at a time, any, create and destroy included; all devices are its own meanwhile.
#ifndef GRADSYNC_LOCAL_MODEL_COPIES_H
#define GRADSYNC_LOCAL_MODEL_COPIES_H

#include <stddef.h>

#include "core/abi.h"
#include "core/status.h"
#include "gradsync/tensor/device_tensor.h"

GS_BEGIN_DECLS

// What the forward half remembers for the backward half. A value.
typedef struct gs_broadcast_record {
    gs_device *device;  // where gradients go
    size_t num_inputs, num_devices;
} gs_broadcast_record;

// The two halves of a broadcast that gradients flow back through. Forward: as
// gs_broadcast_coalesced, but no tensors are empty lists; a device of the CPU is one like any
// other.
GS_NODISCARD gs_status gs_broadcast_forward(gs_tensor_lists **out, gs_broadcast_record *record,
                                            const gs_device_tensor *tensors, size_t num_tensors,
                                            gs_device *const *devices, size_t num_devices);
// The gradients of all outputs, list after list, become one list on the remembered device: their
// sums. INVALID_ARGUMENT unless there are as many as there were outputs.
GS_NODISCARD gs_status gs_broadcast_backward(gs_tensor_lists **out,
                                             const gs_broadcast_record *record,
                                             const gs_device_tensor *grads, size_t num_grads);

// Tables of a model on one device. Entries without memory are absent.
typedef struct gs_model_tables {
    const gs_device_tensor *params, *buffers;
    size_t num_params, num_buffers;
} gs_model_tables;

// The tables on every device. Table 0 is the model's own. Owns the memory of the others; borrows
// the first device's until destroy.
typedef struct gs_model_copies gs_model_copies;

// INVALID_ARGUMENT, naming the place, for what gs_broadcast_coalesced refuses, and for two places
// that hold the same memory in different shapes or dtypes.
GS_NODISCARD gs_status gs_model_copies_create(gs_model_copies **out, const gs_model_tables *tables,
                                              gs_device *const *devices, size_t num_devices);
void gs_model_copies_destroy(gs_model_copies *copies);
// List d is the table of device d.
gs_tensor_lists *gs_model_copies_params(const gs_model_copies *copies);
gs_tensor_lists *gs_model_copies_buffers(const gs_model_copies *copies);
// Of the distinct parameters in order of first appearance, for gs_broadcast_backward; and where in
// the table each of these num_inputs is first.
const gs_broadcast_record *gs_model_copies_record(const gs_model_copies *copies);
const size_t *gs_model_copies_distinct(const gs_model_copies *copies);

GS_END_DECLS

#endif
