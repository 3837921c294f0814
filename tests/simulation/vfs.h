// A file system for SQLite, in memory, on a disk that may do everything that disks do. What a process has written, the
// next one reads; what was not synced when the power failed is there, in part, or not.
#ifndef TESTS_SIMULATION_VFS_H
#define TESTS_SIMULATION_VFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/simulation/dice.h"

typedef struct sim_vfs sim_vfs;

typedef struct vfs_trouble {
    double read_fails, write_fails, sync_fails;  // chances of each
    int64_t room;                                // bytes by which files may grow yet; −1: any number
    bool lies;                                   // a sync says yes and does nothing
} vfs_trouble;

// SQLite uses it for all files until it is destroyed; one at a time.
sim_vfs *vfs_create(sim_dice *dice);
void vfs_destroy(sim_vfs *vfs);
vfs_trouble *vfs_trouble_of(sim_vfs *vfs);

// The process ends behind so many writes, syncs and truncations more: everything fails from then on.
void vfs_end_soon(sim_vfs *vfs, int operations);
void vfs_end(sim_vfs *vfs);
bool vfs_has_ended(const sim_vfs *vfs);
// The next process. Of a disk that lied, a power failure takes the end of what was written; of another, any of what was
// not synced, and half of a write. True: something was lost that a sync had answered for.
bool vfs_begin(sim_vfs *vfs, bool power_failed);

#endif
