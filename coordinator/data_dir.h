// The data directory belongs to one coordinator at a time: a lock file held for life.
#ifndef COORDINATOR_DATA_DIR_H
#define COORDINATOR_DATA_DIR_H

#include "core/status.h"

// Makes the directory (0700) when it is not there and locks it. FAILED_PRECONDITION names the process
// that holds it. *lock_fd is closed, and with it the lock given back, by the caller.
GS_NODISCARD gs_status gs_data_dir_lock(int *lock_fd, const char *path);

#endif
