// Work on a stream that goes wrong: that does not end before it is told to, as a collective whose peer has
// gone, or that takes the device with it.
#ifndef TESTS_GPU_STUCK_H
#define TESTS_GPU_STUCK_H

#include <stdatomic.h>

#include "core/status.h"
#include "kernels/device.h"

// Ends when *released is set; `released` as long as it runs.
GS_NODISCARD gs_status stuck_begin(gs_stream *stream, atomic_bool *released);
// A kernel that fails so that nothing works afterwards in this process.
GS_NODISCARD gs_status fault_begin(gs_device *device);

#endif
