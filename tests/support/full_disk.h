// A disk that is full for a while, or gives errors: what a program does to regular files below a directory fails, from its n-th
// call of these kinds to its m-th. The program has full_disk.c preloaded, and who tests it shares this with it.
#ifndef TESTS_SUPPORT_FULL_DISK_H
#define TESTS_SUPPORT_FULL_DISK_H

#include <stdatomic.h>
#include <stdint.h>

#define GS_FULL_DISK_STATE "GRADSYNC_FULL_DISK"      // environment: the file that holds a gs_full_disk
#define GS_FULL_DISK_ROOT "GRADSYNC_FULL_DISK_ROOT"  // the directory, absolute

enum {
    GS_FULL_DISK_WRITES = 1,  // data, new files, new folders
    GS_FULL_DISK_SYNCS = 2,
    GS_FULL_DISK_CLOSES = 4,  // of files that are open for writing; they are closed all the same
    GS_FULL_DISK_NAMES = 8,   // that files are given
};

typedef struct gs_full_disk {
    _Atomic int kinds;            // 0: writes
    _Atomic int error;            // 0: ENOSPC
    _Atomic int64_t writes;       // so far: calls of these kinds
    _Atomic int64_t first, last;  // of them that fail; first 0: none
    _Atomic int64_t refused;      // so many have
} gs_full_disk;

#endif
