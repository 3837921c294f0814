// Files that several processes read and change: which one it is now, and whose turn it is to change it.
#ifndef RPC_JSON_SEALED_FILE_H
#define RPC_JSON_SEALED_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "core/status.h"

// Another file has been renamed to its place, or it was changed, when any of these is another. {0}: there is none.
typedef struct gs_file_mark {
    uint64_t device, inode;
    int64_t bytes, changed_s, changed_ns;
} gs_file_mark;

bool gs_file_mark_equal(const gs_file_mark *a, const gs_file_mark *b);
gs_file_mark gs_file_mark_of(const struct stat *facts);
// Of what a link leads to. NOT_FOUND: there is no file.
GS_NODISCARD gs_status gs_file_mark_take(gs_file_mark *mark, const char *path);
// FAILED_PRECONDITION: its mode has one of the bits `forbidden`, or it is another user's than this one and root.
GS_NODISCARD gs_status gs_file_check_guarded(const struct stat *facts, const char *path, unsigned forbidden);
// Holds `path`.lock, for 5 s at most; *fd is the caller's, and closing it ends that.
GS_NODISCARD gs_status gs_file_lock(int *fd, const char *path);

#endif
