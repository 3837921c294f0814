// Files below a directory, and nothing else: for names that come from elsewhere.
#ifndef CORE_BELOW_H
#define CORE_BELOW_H

#include "core/status.h"

// Opens `name` below the directory `root_fd` with O_RDONLY and these flags; the descriptor is the
// caller's. PERMISSION_DENIED when the path leaves the root: by "..", absolute, or by a symbolic link. One that
// stays below is followed.
GS_NODISCARD gs_status gs_open_below(int *fd, int root_fd, const char *name, int flags);

#endif
