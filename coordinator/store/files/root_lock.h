// One coordinator of a cluster at a time commands over a directory of checkpoints. Two may be there at once where one was started
// on a copy of the other's data directory: each has its own lock there, and nothing in either database tells of the other. What they
// share is where their ranks save, so a lock is held there for life.
//
//   CHECKPOINTS/COORDINATOR-<cluster>.lock   who holds it, for people: data directory, host, process
#ifndef COORDINATOR_STORE_FILES_ROOT_LOCK_H
#define COORDINATOR_STORE_FILES_ROOT_LOCK_H

#include <stdbool.h>

#include "core/status.h"

// ALREADY_EXISTS: another process holds it, and says in that file who it is; tried for a moment, for one that ends gives it back behind its other
// files. UNIMPLEMENTED: there is nothing to lock here; nobody can be kept out. *lock_fd is closed by the caller.
// Waits for the disk.
GS_NODISCARD gs_status gs_root_lock_take(int *lock_fd, const char *directory, const char *cluster, const char *data_dir);
// Whether what is locked is still what lies in the directory: its disk may have been exchanged.
bool gs_root_lock_holds(int lock_fd, const char *directory, const char *cluster);

#endif
