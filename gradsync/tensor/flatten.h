// Several tensors in one flat buffer, and windows into it: the two halves of a coalesced
// collective.
#ifndef GRADSYNC_TENSOR_FLATTEN_H
#define GRADSYNC_TENSOR_FLATTEN_H

#include <stddef.h>

#include "core/abi.h"
#include "core/status.h"
#include "gradsync/tensor/device_tensor.h"

GS_BEGIN_DECLS

// One dimension, elements in list order, no padding. A single tensor is not copied: the result
// shares its memory. Several go into a new buffer on their device. INVALID_ARGUMENT, naming the
// position, for an empty list, for another dtype (values must not be converted unseen) and for
// another device.
GS_NODISCARD gs_status gs_flatten(gs_held_tensor *flat, const gs_device_tensor *tensors,
                                  size_t num_tensors);

// windows[i] has the shape of templates[i] and lies behind windows[i - 1] in `flat`, whose memory
// it borrows. INVALID_ARGUMENT unless the templates have the flat tensor's dtype and add up to its
// elements.
GS_NODISCARD gs_status gs_unflatten(gs_device_tensor *windows, const gs_device_tensor *flat,
                                    const gs_device_tensor *templates, size_t num_templates);

GS_END_DECLS

#endif
