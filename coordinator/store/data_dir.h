// The data directory belongs to one coordinator at a time: a lock file held for life.
#ifndef COORDINATOR_STORE_DATA_DIR_H
#define COORDINATOR_STORE_DATA_DIR_H

#include <stdbool.h>
#include <stddef.h>

#include "core/status.h"

// Where a coordinator keeps its data unless told: $STATE_DIRECTORY (systemd), for root /var/lib/gradsync, else
// gradsync below $XDG_STATE_HOME or ~/.local/state. Always absolute: where a coordinator is started from must
// not decide which jobs it knows. FAILED_PRECONDITION: nothing says where.
GS_NODISCARD gs_status gs_data_dir_default(char *path, size_t path_bytes, bool is_root);

// Makes the directory (0700) when it is not there and locks it. FAILED_PRECONDITION names the process
// that holds it. *lock_fd is closed, and with it the lock given back, by the caller.
GS_NODISCARD gs_status gs_data_dir_lock(int *lock_fd, const char *path);

#endif
