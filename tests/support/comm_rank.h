// What a rank of a communicator test has: a device, an arena, a communicator; and small helpers to
// fill and check buffers of any dtype with integers that every dtype holds exactly.
#ifndef TESTS_SUPPORT_COMM_RANK_H
#define TESTS_SUPPORT_COMM_RANK_H

#include <stddef.h>
#include <stdint.h>

#include "gradsync/comm/comm.h"
#include "tests/support/ranks.h"

typedef struct comm_rank {
    int rank, world_size;
    gs_device *device;
    gs_arena *arena;
    gs_comm *comm;
} comm_rank;

// `options` gives backend, generation, helper and, unless it is NULL, the exchange; the rest comes
// from `env`. NULL: the defaults.
// Close it after an error, too.
gs_status comm_rank_open(comm_rank *self, const gs_rank_env *env, size_t arena_bytes,
                         const gs_comm_options *options);
void comm_rank_close(comm_rank *self);

// A small integer that depends on seed, rank and index; period 11 in the index.
int pattern_value(uint64_t seed, int rank, size_t index);
void fill_pattern(void *data, gs_dtype dtype, size_t count, uint64_t seed, int rank, size_t first);
// DATA_LOSS names the first element of `data` that is not Σ over ranks (or that of `rank` ≥ 0).
gs_status check_pattern(const void *data, gs_dtype dtype, size_t count, uint64_t seed, int rank,
                        int world_size, size_t first);

#endif
