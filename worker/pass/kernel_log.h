// The times of the kernels of one step, in the log: GRADSYNC_KERNEL_TIMES=STEP in the trainer's environment
// (kernels/kernel_times.h). Passes of that step run without graphs. With several replicas in a process the first one's device
// is timed. Thread of the device.
#ifndef WORKER_PASS_KERNEL_LOG_H
#define WORKER_PASS_KERNEL_LOG_H

#include <stdint.h>

#include "core/status.h"
#include "kernels/device.h"

typedef struct gs_kernel_log_place {
    const char *job;
    int rank;
    int64_t step;
} gs_kernel_log_place;

// Before a step begins and behind its update; any other step than the one that is asked for is left alone. A step
// that failed in between and comes again is timed anew.
GS_NODISCARD gs_status gs_kernel_log_begin(gs_device *device, int64_t step);
GS_NODISCARD gs_status gs_kernel_log_end(gs_device *device, const gs_kernel_log_place *place);

#endif
