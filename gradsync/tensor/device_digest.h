// Digests of a device's memory, the same as of equal bytes in the host's.
#ifndef GRADSYNC_TENSOR_DEVICE_DIGEST_H
#define GRADSYNC_TENSOR_DEVICE_DIGEST_H

#include <stddef.h>

#include "core/digest.h"
#include "core/status.h"
#include "kernels/device.h"

// Adds `bytes` from `memory`, piece by piece; waits for what the compute stream was given.
GS_NODISCARD gs_status gs_device_digest_add(gs_digest_stream *stream, gs_device *device,
                                            const void *memory, size_t bytes);

#endif
