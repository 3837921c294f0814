// The random matrix that a low-rank approximation starts from: the same bits on every CPU and every
// rank, whatever was drawn before.
#ifndef GRADSYNC_HOOKS_RANDOM_FACTOR_H
#define GRADSYNC_HOOKS_RANDOM_FACTOR_H

#include <stddef.h>
#include <stdint.h>

#include "core/dtype.h"

// What a number depends on, and its place in the matrix.
typedef struct gs_random_factor {
    uint64_t seed;  // of the hook
    uint64_t draw;  // which one of this matrix
    uint64_t key;   // which matrix
} gs_random_factor;

// `count` numbers in host memory, near a normal distribution of deviation 0.8, none of them zero:
// sums of eight uniform whole numbers, exact in fp32 and fp64 (no libm, nothing to round).
void gs_random_factor_fill(void *out, gs_dtype dtype, size_t count, gs_random_factor what);

#endif
