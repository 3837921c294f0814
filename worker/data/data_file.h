// A read-only file below a root directory, read piece by piece.
//
// A job names files, and jobs come from outside: nothing above the root is ever opened, neither by
// ".." nor by an absolute path nor through a symbolic link. Only regular files are opened.
// Files must stay as they are while a job runs. One that is cut short is an error of the read that
// misses its end: that is why they are not mapped into memory, where it would kill the process.
#ifndef WORKER_DATA_DATA_FILE_H
#define WORKER_DATA_DATA_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef struct gs_data_file {
    char *name;    // owned; as given, relative to the root; NULL: closed
    int fd;        // owned
    size_t bytes;  // when it was opened
} gs_data_file;    // {0} is closed

// `name` is below the directory `root_fd`. PERMISSION_DENIED when the path leaves it.
GS_NODISCARD gs_status gs_data_file_open(gs_data_file *file, int root_fd, const char *name);
// Bytes [begin, begin + bytes) of the file, which are below its size. Any thread. DATA_LOSS names
// the file when they are not there any more.
GS_NODISCARD gs_status gs_data_file_read(const gs_data_file *file, void *to, size_t begin,
                                         size_t bytes);
void gs_data_file_close(gs_data_file *file);

#endif
