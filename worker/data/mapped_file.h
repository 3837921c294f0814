// A read-only file below a root directory, mapped into memory.
//
// A job names files, and jobs come from outside: nothing above the root is ever opened, neither by
// ".." nor by an absolute path nor through a symbolic link. Only regular files are mapped.
// Files must stay as they are while a job runs: one that is cut short under a mapping kills the process.
#ifndef WORKER_DATA_MAPPED_FILE_H
#define WORKER_DATA_MAPPED_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct gs_mapped_file {
    char *name;          // owned; as given, relative to the root
    const uint8_t *data; // NULL when the file is empty
    size_t bytes;
} gs_mapped_file; // {0} is closed

// Opens `name` below the directory `root_fd` with O_RDONLY and these flags; the descriptor is the
// caller's. PERMISSION_DENIED when the path leaves the root.
GS_NODISCARD gs_status gs_open_below(int *fd, int root_fd, const char *name, int flags);

GS_NODISCARD gs_status gs_mapped_file_open(gs_mapped_file *file, int root_fd, const char *name);
void gs_mapped_file_close(gs_mapped_file *file);

#endif
