// The shared-memory backend, counting what this process would send by its collectives.
#ifndef TESTS_SUPPORT_COUNTING_BACKEND_H
#define TESTS_SUPPORT_COUNTING_BACKEND_H

#include <stdint.h>

#include "gradsync/comm/comm_backend.h"

// For gs_comm_options.own_backend. One communicator at a time counts.
extern const gs_comm_backend counting_backend;

typedef struct counted_bytes {
    // Of collectives that belong to buckets, where ranks form a ring: an all-reduce sends each part twice but for its
    // own, others once.
    double in_a_ring;
    uint64_t num_collectives;
} counted_bytes;

counted_bytes counting_backend_take(void);  // since the last call

#endif
