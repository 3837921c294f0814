// A batch over the devices of one process along its first dimension, and outputs back into one
// tensor.
#ifndef GRADSYNC_LOCAL_SCATTER_H
#define GRADSYNC_LOCAL_SCATTER_H

#include <stddef.h>

#include "core/abi.h"
#include "core/status.h"
#include "gradsync/tensor/device_tensor.h"

GS_BEGIN_DECLS

// parts[d] is device d's run of rows; as equal as can be, the first ones ceil(rows / devices) long,
// so that the last may be shorter or, with fewer rows than devices, empty. What stays on its device
// is a window, other devices get copies, enqueued on their streams. INVALID_ARGUMENT for a scalar
// and for no devices.
GS_NODISCARD gs_status gs_scatter(gs_held_tensor *parts, const gs_device_tensor *tensor,
                                  gs_device *const *devices, size_t num_devices);

// Rows of all parts behind each other in a new tensor on the destination; scalars become one
// dimension. INVALID_ARGUMENT, naming the part, unless they agree in dtype and in all dimensions
// but the first.
//   destination  NULL: the device of part 0
GS_NODISCARD gs_status gs_gather(gs_held_tensor *out, const gs_device_tensor *parts,
                                 size_t num_parts, gs_device *destination);

GS_END_DECLS

#endif
