// Tables of kernels whose launchers note where they begin and end (launch_notes.h). Internal to kernels/.
#ifndef KERNELS_TIMED_TABLE_H
#define KERNELS_TIMED_TABLE_H

#include "core/status.h"
#include "kernels/device_options.h"

// Of a device that has just been opened: with GRADSYNC_KERNEL_TIMES in the environment it hands out such tables from here
// on. INVALID_ARGUMENT names what is no step there.
GS_NODISCARD gs_status gs_timed_table_attach(gs_device *device);

#endif
