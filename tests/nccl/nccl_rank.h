// What a rank of an NCCL test has: the first GPU, an arena on it, a communicator; and buffers on either side.
#ifndef TESTS_NCCL_NCCL_RANK_H
#define TESTS_NCCL_NCCL_RANK_H

#include <stddef.h>
#include <stdint.h>

#include "gradsync/comm/comm.h"
#include "tests/support/comm_rank.h"
#include "tests/support/ranks.h"

#define NCCL_RANK_SECONDS 60.0  // several processes share a GPU, or a core

// Ends the process as skipped (77) where there is no GPU.
void nccl_skip_without_gpu(void);

// The device alone, and the arena.
gs_status nccl_rank_open_device(comm_rank *self, const gs_rank_env *env, size_t arena_bytes);
// And the communicator; `options` as for comm_rank_open.
gs_status nccl_rank_connect(comm_rank *self, const gs_rank_env *env,
                            const gs_comm_options *options, gs_deadline deadline);
gs_status nccl_rank_open(comm_rank *self, const gs_rank_env *env, size_t arena_bytes,
                         const gs_comm_options *options);

// Ranks of that body, with all the time that they may take; the first error, with the world that it was in.
gs_status nccl_ranks_run(const char *body, int world_size, const char *arg);

// Descriptors and threads that this process has.
int nccl_count_descriptors(void);
int nccl_count_threads(void);

#endif
