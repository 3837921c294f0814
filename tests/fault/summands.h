// Sums in flight together, in place, of integers that reveal every contributor: of whatever became of them it can be told whether it
// is the sum of all ranks, this rank's own numbers, or neither.
#ifndef TESTS_FAULT_SUMMANDS_H
#define TESTS_FAULT_SUMMANDS_H

#include "tests/support/comm_rank.h"

#define SUMMANDS 3

typedef struct summands {
    size_t counts[SUMMANDS];
    float *data[SUMMANDS];
    uint64_t seed;  // of the first
    gs_work works[SUMMANDS];
} summands;

// One of `large` elements between two small ones.
void summands_init(summands *own, size_t large);
void summands_release(summands *own);

gs_status summands_add(summands *own, comm_rank *self, double seconds);
// What is done is the sum of all, what is not is this rank's own. Nothing moves.
gs_status summands_check(const summands *own, const comm_rank *self);

#endif
