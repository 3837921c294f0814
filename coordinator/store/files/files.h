// The few things done with files: reading to verify, removing in a safe order. Threads of the writer, which keep apart what is in the way of each other.
#ifndef COORDINATOR_STORE_FILES_FILES_H
#define COORDINATOR_STORE_FILES_FILES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/digest.h"
#include "core/status.h"

// Reads the whole file; DATA_LOSS names the file when size or digest differ. An empty digest: not
// compared. bytes −1: not compared. PERMISSION_DENIED: one of the last `levels` directories of the path is a link.
GS_NODISCARD gs_status gs_file_verify(const char *path, int levels, int64_t bytes, const char *digest);
// There is nothing of that name. What a disk refuses to say is not gone: nothing is removed or forgotten for it.
bool gs_file_is_gone(const char *path);
// Walks by descriptors and follows no links, also none that are put in the place of what is being removed, nor of one of the last
// `levels` names of the path (PERMISSION_DENIED). Ok when there is nothing, also where another removes it at the same time.
GS_NODISCARD gs_status gs_file_remove_tree(const char *path, int levels);
// The same, of one level; ends where it is once that is set: CANCELLED.
GS_NODISCARD gs_status gs_file_remove_tree_unless(const char *path, const atomic_bool *stopping);
// Manifest first, then what it names: a crash leaves a checkpoint or garbage, never a lie. Two levels. NOT_FOUND: there is none, or
// its disk is away.
GS_NODISCARD gs_status gs_file_remove_checkpoint(const char *directory);
GS_NODISCARD gs_status gs_file_make_directory(const char *path);  // 0700, fine when it exists
bool gs_file_name_plain(const char *name);  // one component of a path, nothing special

#endif
