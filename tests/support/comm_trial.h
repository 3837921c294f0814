// One collective of a test with its buffers: filled from a seed, checked exactly.
#ifndef TESTS_SUPPORT_COMM_TRIAL_H
#define TESTS_SUPPORT_COMM_TRIAL_H

#include <stddef.h>
#include <stdint.h>

#include "core/status.h"
#include "gradsync/comm/collective.h"

typedef struct comm_trial {
    gs_collective collective;
    uint64_t seed;
    size_t send_count, recv_count;
} comm_trial;

comm_trial comm_trial_make(gs_collective_kind kind, gs_dtype dtype, size_t count, int world_size,
                           int root, uint64_t seed);
// In place where `recv` is NULL; then the buffer at `send` holds the larger of the two.
void comm_trial_place(comm_trial *one, unsigned char *send, unsigned char *recv, int rank);
gs_status comm_trial_check(const comm_trial *one, int rank, int world_size);

#endif
