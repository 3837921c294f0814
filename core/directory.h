// Directories whose names are still there after a loss of power: what lies in one is no safer than its own name.
#ifndef CORE_DIRECTORY_H
#define CORE_DIRECTORY_H

#include <sys/types.h>

#include "core/status.h"

// Unless it is there. Its name is on the disk then, whoever made it.
GS_NODISCARD gs_status gs_directory_make(const char *path, mode_t mode);
// With those above it.
GS_NODISCARD gs_status gs_directory_make_path(const char *path, mode_t mode);

// PERMISSION_DENIED where one of the last `levels` names of the path is a symbolic link: what lies below a root of ours is not
// written to, read from or removed elsewhere because of a link that somebody put there. What is not there is none.
GS_NODISCARD gs_status gs_directory_refuse_links(const char *path, int levels);

#endif
