// A disk that is full for a while: what a program writes to regular files below a directory fails with ENOSPC, from its
// n-th write to its m-th. The program has full_disk.c preloaded, and who tests it shares this with it.
#ifndef TESTS_SUPPORT_FULL_DISK_H
#define TESTS_SUPPORT_FULL_DISK_H

#include <stdatomic.h>
#include <stdint.h>

#define GS_FULL_DISK_STATE "GRADSYNC_FULL_DISK"      // environment: the file that holds a gs_full_disk
#define GS_FULL_DISK_ROOT "GRADSYNC_FULL_DISK_ROOT"  // the directory, absolute

typedef struct gs_full_disk {
    _Atomic int64_t writes;       // so far: data, new files, new folders
    _Atomic int64_t first, last;  // of them that fail; first 0: none
    _Atomic int64_t refused;      // so many have
} gs_full_disk;

#endif
