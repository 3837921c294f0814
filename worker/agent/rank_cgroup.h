// Control groups of slots: the memory of a rank, with everything that it starts and shares, under a limit of the kernel's.
//
// The agent is given a group that it may divide (a systemd unit with Delegate=, a directory made for it) and makes one below
// it for each slot that has a trainer. Version 2, and the memory controller of version 1.
#ifndef WORKER_AGENT_RANK_CGROUP_H
#define WORKER_AGENT_RANK_CGROUP_H

#include <stdint.h>

#include "core/status.h"

typedef struct gs_rank_cgroup gs_rank_cgroup;

// `directory`: a group's, or "own" for the agent's, which then moves into a group below it: one that is divided holds no
// processes itself. FAILED_PRECONDITION says what is missing.
GS_NODISCARD gs_status gs_rank_cgroup_open(gs_rank_cgroup **out, const char *directory);
void gs_rank_cgroup_close(gs_rank_cgroup *cgroup);

// A group for what starts in the slot. A process that writes "0" into the descriptor, which is the caller's, is in it.
GS_NODISCARD gs_status gs_rank_cgroup_make(int *members_fd, const gs_rank_cgroup *cgroup, int slot, int64_t memory_bytes);
// How many processes of the slot the kernel has ended for want of memory.
int64_t gs_rank_cgroup_kills(const gs_rank_cgroup *cgroup, int slot);
// When the trainer of the slot has ended. What it has left behind, in a session of its own, is killed.
void gs_rank_cgroup_remove(const gs_rank_cgroup *cgroup, int slot);

#endif
